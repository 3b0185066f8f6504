"""One model of the survey, and the libraries that it may come from."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

WRITTEN_OUT = ("physics", "detection", "recurrent", "generation", "image", "operators", "sequence", "field")
LIBRARIES = ("torchvision", "timm", "diffusers", "monai", "transformers", *WRITTEN_OUT)


@dataclass(frozen=True)
class Entry:
    """A model with random weights, and its input.

    make: the model. input: what `synth.parallelize` takes: a shape, or shapes and values by position or name.
    trains: whether the model gives a gradient to its parameters. remark: what differs from the library's own.
    """

    library: str
    name: str
    make: Callable[[], nn.Module]
    input: Any
    trains: bool = True
    remark: str = ""


class Method(nn.Module):
    """A model of which another method than `forward` is used, such as `decode` of an autoencoder."""

    def __init__(self, model: nn.Module, method: str, **given: Any) -> None:
        super().__init__()
        self.model, self.method, self.given = model, method, given

    def forward(self, x: torch.Tensor) -> Any:
        """What the method makes."""
        made = getattr(self.model, self.method)(x, **self.given)
        return made[0] if isinstance(made, tuple) else made


def entries_of(library: str) -> list[Entry]:
    """The models of a library. Raises `ImportError` where it is not installed."""
    if library not in WRITTEN_OUT:
        import_torchvision()  # which timm and monai import, too
        importlib.import_module(library)
    module = importlib.import_module(f"benchmarks.models_survey.{library}_models")
    found: list[Entry] = module.entries()
    return found


def import_torchvision() -> None:
    """Import torchvision if it is installed, also where its compiled operators are of another build of torch.

    No model of the survey uses these operators, but the import registers shapes for two of them.
    """
    if find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        names = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            names.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(names)
        importlib.import_module("torchvision")


_KEPT: list[Any] = []  # a library of operators lives as long as its object
