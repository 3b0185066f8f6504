"""Layers as they are before forward runs, which may change them for a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from synth.runtime.tracing.facts import INTERNAL, STORED
from synth.runtime.tracing.recorded import is_one_call


class AtRest:
    """The layers of a model, with the tensors and settings that they have now.

    A layer that is recorded as one call computes with these. Forward may put others
    there for a call, as `torch.func.functional_call` does with weights. Such a layer is
    followed into its functions, which are given what it has then.
    """

    def __init__(self, model: nn.Module) -> None:
        self.known = {id(each): _held(each) for each in model.modules()}

    def is_one_call(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether a module is a layer of torch.nn, which is recorded as one call."""
        if not is_one_call(module, args, kwargs):
            return False
        return self._rests(module)

    def _rests(self, module: nn.Module) -> bool:
        """Whether a module and its parts are as they were."""
        known = self.known.get(id(module))
        if known is None or not _same(known, _held(module)):
            return False
        return all(map(self._rests, filter(None, _own(module)["_modules"].values())))


def _own(module: nn.Module) -> dict[str, Any]:
    """What a module has, which a user's forward has not read by this."""
    found: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return found


def _held(module: nn.Module) -> dict[str, Any]:
    """The class, parameters, buffers, parts and settings of a module."""
    here = _own(module)
    found = {name: value for name, value in here.items() if name not in INTERNAL}
    found[" class"] = type(module)
    for kind in STORED:
        found |= {f"{kind} {name}": value for name, value in here[kind].items()}
    return found


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        value is other[name] or _equal(value, other[name])
        for name, value in one.items()
    )


def _equal(one: Any, other: Any) -> bool:
    """Whether two settings are equal; a tensor or a part is the same or another."""
    if isinstance(one, torch.Tensor | nn.Module):
        return False
    return type(one) is type(other) and bool(one == other)
