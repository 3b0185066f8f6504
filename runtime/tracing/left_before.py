"""Finds what a call of a model reads that another call of it leaves in attributes.

An attribute that training writes and evaluation reads is a state. The graph of the call
that reads it has the value of the time when it was traced, so such a call is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from synth.runtime.tracing.attributes import Attributes, is_plain
from synth.runtime.tracing.expressions import behind
from synth.runtime.tracing.facts import (
    OUTSIDE,
    Place,
    tensors_within,
)
from synth.runtime.tracing.inputs import Arguments
from synth.runtime.tracing.kept_state import name_of, require_no_numbers
from synth.runtime.tracing.recorder import KeptTensor, Recorder
from synth.runtime.tracing.surroundings import Kept
from synth.runtime.tracing.trace import recorded
from synth.runtime.tracing.unsupported import plain_copies


class LeftBeforeError(ValueError):
    """A call reads what another call has left."""


class Traceable(NamedTuple):
    """A call of a model, which may be traced. said: its name and mode, for messages.

    model: on "meta", with the method as its `forward`. modes: of the modules, by name.
    """

    said: str
    model: nn.Module
    modes: Mapping[str, bool]
    arguments: Arguments
    dtype: torch.dtype
    device: str
    seen: Attributes

    def put_on(self, model: nn.Module) -> None:
        """Let a copy of the model make this call."""
        model.__class__ = type(self.model)
        for name, module in model.named_modules():
            module.training = self.modes.get(name, module.training)


def may_read(first: Traceable, then: Traceable) -> list[Place]:
    """The attributes that one call writes, and another may read before it does."""
    read = then.seen.first | then.seen.sought
    return [at for at in sorted(first.seen.written) if at in read or at[0] == OUTSIDE]


def require_not_left(first: Traceable, then: Traceable) -> None:
    """Raise `ValueError` for a call that reads what another one before it has left."""
    made = copy.deepcopy(then.model, plain_copies(then.model)).to("meta")
    outside = {**first.seen.outside, **then.seen.outside}
    around, seen = Kept(made, outside), Attributes(outside)
    one = Recorder(made, first.device)
    two = Recorder(made, then.device, one)
    try:
        first.put_on(made)
        with torch.enable_grad(), seen.seen(made, lambda: one.depth > 0):
            one.run(made, first.arguments, first.dtype)
        around.note_changes(seen)
        then.put_on(made)
        left = _computed(one, seen, may_read(first, then))
        name = _first_read(made, then, two, left)
        if name:
            raise ValueError(
                f"{then.said} reads {name}, which {first.said} has left; keep it in a"
                " buffer that forward changes in place, give it as an argument, or set"
                " it on the network before each call"
            )
        _note_numbers(one, seen)
    finally:
        around.put_back()
    seen.first |= then.seen.first | then.seen.sought
    fresh = copy.deepcopy(then.model, plain_copies(then.model))
    then.put_on(fresh)

    def run(model: nn.Module) -> fx.Graph:
        given = then.arguments, then.dtype, None, then.device
        return recorded(model, *given, Attributes(outside))

    require_no_numbers(fresh, run, seen)


def _first_read(
    model: nn.Module, then: Traceable, recorder: Recorder, left: list[str]
) -> str:
    """The attribute that a call reads of what the one before has computed; "".

    left: those with tensors that the one before has computed, which it may read.
    """
    try:
        with torch.enable_grad():
            recorder.run(model, then.arguments, then.dtype)
    except KeptTensor as kept:
        return name_of(model, kept.values, then.seen.outside)
    except Exception:  # as where Python reads values, which are none
        return ", ".join(left)
    one: Any = recorder.before
    alive = chain.from_iterable(each.values() for each in one.alive.values())
    for values in alive:  # those of weights alone are constants of this call
        node, _ = one.nodes.get(id(values), (None, 0))
        if recorder.knows(values) and node is not None and _of_weights(node):
            return name_of(model, values, then.seen.outside)
    return ""


def _of_weights(node: fx.Node) -> bool:
    """Whether a call computes with parameters or buffers."""
    return node.op != "get_attr" and any(each.op == "get_attr" for each in behind(node))


def _computed(one: Recorder, seen: Attributes, places: Iterable[Place]) -> list[str]:
    """The names of places in which a run has left what it has computed."""
    found = {at: seen.changes[at][1] for at in places if at in seen.changes}
    return [
        ".".join(filter(None, at))
        for at, value in found.items()
        if any(map(one.computed, tensors_within([value])))
    ]


def _note_numbers(one: Recorder, seen: Attributes) -> None:
    """Note the constants that a run has left. Those of a cache are parts of a whole."""
    computed = {
        place
        for place, (_, new) in seen.changes.items()
        if not is_plain(new) and all(map(one.computed, tensors_within([new])))
    }
    for place in computed:
        del seen.changes[place]
    seen.forget_values()
