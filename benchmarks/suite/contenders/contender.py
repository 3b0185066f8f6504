"""Common parts of all contenders: shards of the whole tensors, a module, and a timed step.

A step begins with this rank's shards of In, Ker and (training) dOut in memory. It ends when this rank holds
its shards of Out and (training) dIn and dKer. The optimizer is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from synth.layer.layer import Layer
from synth.runtime.grid.boxes import Box, cut, within

Whole = dict[str, torch.Tensor]  # In, Ker, dOut, Out, dIn, dKer
OWNER = {"Out": "Out", "dOut": "Out", "In": "In", "dIn": "In", "Ker": "Ker", "dKer": "Ker"}
CLOSE = 1e-4  # of the largest value


class NotApplicableError(Exception):
    """A contender cannot run a line; the message gives the reason."""


def frame(shape: tuple[int, ...]) -> Box:
    """The box of a whole tensor."""
    return tuple((0, extent) for extent in shape)


def copied_weight(whole: Whole) -> torch.Tensor:
    """A copy of Ker in this rank's memory, shared by all contenders that start from one."""
    return whole.setdefault("copy of Ker", whole["Ker"].clone())


def split(shape: tuple[int, ...], parts: dict[int, tuple[int, int]]) -> Box:
    """The box of a tensor that is split along some dimensions: dimension -> (parts, index)."""
    box = list(frame(shape))
    for dim, (count, index) in parts.items():
        if shape[dim] < count:
            raise NotApplicableError(f"dimension {dim} of {tuple(shape)} is cut into {count} parts")
        box[dim] = cut(box[dim], count, index)
    return tuple(box)


def even(shape: tuple[int, ...], dim: int, parts: int) -> None:
    """Raises `NotApplicableError` for unequal parts: the plain collectives need equal messages."""
    if shape[dim] % parts:
        raise NotApplicableError(f"{shape[dim]} along dimension {dim} are not a multiple of {parts}")


def same(tensor: torch.Tensor, _: str = "") -> torch.Tensor:
    """The same tensor."""
    return tensor


def as_local(tensor: Any) -> torch.Tensor:
    """This rank's part of a DTensor; a plain tensor unchanged."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


@dataclass
class Contender:
    """A layer on the ranks. boxes: this rank's boxes of In, Ker and Out.

    copied: tensors that every rank holds a copy of at the start, at no cost.
    mean: whether dKer is the mean over the ranks instead of the sum.
    enter: a local share of "In" or "Out" as the module takes it.
    finish: a gradient of the weight as it is to be held.
    tuned: whether our local kernels take the form that was the fastest when they were timed (`--tune`).
    """

    name: str
    module: Callable[[Any], Any]
    boxes: dict[str, Box]
    copied: tuple[str, ...] = ()
    mean: bool = False
    enter: Callable[[torch.Tensor, str], Any] = same
    finish: Callable[[Any], Any] = same
    tuned: bool = False


class Run:
    """A contender with its shards, ready to run steps."""

    def __init__(self, contender: Contender, whole: Whole, training: bool) -> None:
        self.contender, self.training, self.name = contender, training, contender.name
        self.inputs = contender.enter(self.share(whole, "In"), "In")
        self.weight: Any = None
        if training:
            self.inputs.requires_grad_()
            assert isinstance(contender.module, nn.Module)
            (self.weight,) = contender.module.parameters()
            self.dout = contender.enter(self.share(whole, "dOut"), "Out")

    def share(self, whole: Whole, name: str) -> torch.Tensor:
        """This rank's shard of a whole tensor, in its own memory."""
        held = whole[name]
        return held[within(self.contender.boxes[OWNER[name]], frame(held.shape))].clone()

    def step(self) -> dict[str, Any]:
        """The timed step; returns the results by name."""
        module = self.contender.module
        if not self.training:
            with torch.no_grad():
                return {"Out": module(self.inputs)}
        self.inputs.grad = self.weight.grad = None
        out = module(self.inputs)
        out.backward(self.dout)
        return {"Out": out.detach(), "dIn": self.inputs.grad, "dKer": self.contender.finish(self.weight.grad)}

    def forget(self) -> None:
        """Free the gradients between steps, so that every contender has all memory."""
        if self.training:
            self.inputs.grad = self.weight.grad = None

    def wrong(self, whole: Whole) -> str:
        """The error in this rank's results; empty if there is none. A collective call."""
        for name, result in self.step().items():
            held, right = as_local(result), self.share(whole, name)
            if self.contender.mean and name == "dKer":
                right /= dist.get_world_size()
            if held.shape != right.shape:
                return f"{self.name}: {name} has shape {tuple(held.shape)}, not {tuple(right.shape)}"
            error = float((held - right).abs().max()) if right.numel() else 0.0
            if not error <= CLOSE * float(whole[name].abs().max()):
                return f"{self.name}: {name} is off by {error:.3g}"
        return ""


Maker = Callable[[Layer, Whole, bool], Contender]  # raises NotApplicableError
