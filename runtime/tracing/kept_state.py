"""State that a model keeps in plain attributes from one call to the next.

A graph repeats the call that was traced. A counter that `forward` computes with, a flag
of its first call or a hidden state would stay what it was, so such models are refused.
What is stored and never read, or read and always the same, changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree

from synth.runtime.tracing.attributes import Attributes, Place
from synth.runtime.tracing.modes import difference
from synth.runtime.tracing.unsupported import plain_copies

REMEDY = (
    "from one call to the next, but the ranks would repeat the first one; keep it in a"
    " buffer that forward changes in place, give it as an argument, or set it on the"
    " network before each call"
)


def require_no_tensors(
    seen: Attributes, computed: Callable[[Any], bool], used: Callable[[Any], bool]
) -> None:
    """Raise `ValueError` for tensors that the run that was seen keeps for the next.

    computed: whether a tensor depends on the input. used: whether the run read it.
    """
    for place, (old, new) in seen.changes.items():
        first = place in seen.first and old is not new
        state = any(computed(each) for each in _tensors(new))
        counted = any(used(each) for each in _tensors(old)) and bool(_tensors(new))
        if first and (state or counted):
            raise ValueError(f"forward keeps {_name(place)} {REMEDY}")


def require_no_numbers(
    model: nn.Module, run: Callable[[nn.Module], fx.Graph], seen: Attributes
) -> None:
    """Raise `ValueError` for a model of which a second call makes other calls.

    run: traces a model. seen: of the runs of the model as it is given.
    """
    places = {
        place: value
        for place, value in seen.left.items()
        if place in seen.first and place[0] not in seen.caches
    }
    if not places:
        return
    try:
        one, other = run(model), run(_after(model, places))
    except Exception:  # what the first call has left may be a part of a whole
        return
    call = difference(one, other)
    if call:
        names = ", ".join(map(_name, places))
        raise ValueError(f"forward keeps {names} {REMEDY} (see the call {call})")


def _after(model: nn.Module, places: Mapping[Place, Any]) -> nn.Module:
    """A copy of a model with what a run has left in its attributes."""
    made = copy.deepcopy(model, plain_copies(model))
    for (module, name), value in places.items():
        setattr(made.get_submodule(module), name, copy.deepcopy(value))
    return made


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = _pytree.tree_leaves(value)
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def _name(place: Place) -> str:
    return ".".join(each for each in place if each)
