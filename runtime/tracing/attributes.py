"""Which attributes of its modules a model reads and writes while it runs.

A change of any other attribute cannot change what the model computes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils import _pytree

from synth.runtime.tracing.facts import (
    INTERNAL,
    MISSING,
    NOWHERE,
    OUTSIDE,
    Description,
    Fact,
    Outside,
    Places,
    differences,
)
from synth.runtime.tracing.inputs import CONSTANTS
from synth.runtime.tracing.left_values import (
    LeftValue,
    Place,
    holds_left,
    standing_for,
)
from synth.runtime.tracing.switches import Switches, read_by_users

Names = set[Place]
ALL = "__dict__"  # stands for all attributes of a module


class Attributes:
    """What the runs of one model read and wrote.

    read: by code of the model, not by layers of torch.nn that are recorded as one call.
    called: those layers. written: attributes that differ after a run. first: those that
    were read before they were written. changes: the values of written attributes before
    and after the last run. left: what runs left in those that have constants alone.
    caches: modules in which they left tensors or other objects. kept: place -> what
    they left, as far as it is of constants (`left_values`). outside: where the model
    may read what is not in modules; what it wrote there has no module. switches: of
    torch, which code of the model read. changed: inputs that it changes in place.
    dtypes: whether the model reads those of tensors, which its graph has as constants.
    """

    def __init__(self, outside: Places = NOWHERE) -> None:
        self.outside = dict(outside)
        self.read: Names = set()
        self.called: set[str] = set()
        self.written: Names = set()
        self.first: Names = set()
        self.changes: dict[Place, tuple[Any, Any]] = {}
        self.left: dict[Place, Any] = {}
        self.caches: set[str] = set()
        self.kept: dict[Place, Any] = {}
        self.switches: Switches = {}
        self.changed: set[str] = set()
        self.dtypes = False

    def is_read(self, module: str, name: str) -> bool:
        """Whether a run read an attribute."""
        return (module, name) in self.read or (module, ALL) in self.read

    def is_called(self, module: str) -> bool:
        """Whether a module is a layer that is recorded as one call, or a part of it."""
        parts = module.split(".")
        above = (".".join(parts[:n]) for n in range(len(parts) + 1))
        return any(each in self.called for each in above)

    def take(self, other: Attributes) -> bool:
        """Take those of another method of the same model; whether some are new."""
        own = vars(self)
        names = "read", "called", "written", "first", "kept"
        taken = {name: own[name] | vars(other)[name] for name in names}
        taken["outside"] = _of_both(self.outside, other.outside)
        taken["switches"] = self.switches | other.switches
        self.dtypes |= other.dtypes
        new = any(len(own[name]) != len(each) for name, each in taken.items())
        own.update(taken)
        return new

    @contextmanager
    def seen(self, model: nn.Module, inside: Callable[[], bool]) -> Iterator[None]:
        """Note what a model that runs in here reads and writes.

        inside: whether a layer is running that is recorded as one call.
        """
        before = Description(model)
        names = {id(each): name for name, each in before.modules.items()}

        def read(module: nn.Module, name: str) -> object:
            known = names.get(id(module))
            counts = known is not None and name not in INTERNAL and not inside()
            if counts and not (name == ALL and _is_torchs(sys._getframe(1).f_globals)):
                self.read.add((str(known), name))
                held = before.facts.get(Fact(str(known), "attribute", name), MISSING)
                if held is object.__getattribute__(module, "__dict__").get(name):
                    self.first.add((str(known), name))
            return object.__getattribute__(module, name)

        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        try:
            with read_by_users(self.switches):
                yield
        finally:
            del nn.Module.__getattribute__
        now = Description(model).facts
        found = [
            each.fact
            for each in differences(before.facts, now)
            if each.fact.kind == "attribute"
        ]
        whole = {each._replace(path="") for each in found}
        places = {(each.module, each.name): each for each in whole}
        self.written |= places.keys()
        self.changes = {p: (before.facts.get(f), now.get(f)) for p, f in places.items()}

    def forget_values(self) -> None:
        """Keep no values of the model alive but constants."""
        for place, (old, new) in self.changes.items():
            if place[0] != OUTSIDE:
                self._keep(place, old, new)
            if is_plain(new):
                self.left[place] = new
            else:
                self.caches.add(place[0])
        self.changes = {}

    def _keep(self, place: Place, old: Any, new: Any) -> None:
        """Note what a run leaves in an attribute.

        Not in one that it reads first, but for containers that it changes: these are
        constants for the graph, or refused.
        """
        if place in self.first and (is_plain(new) or old is not new):
            return
        name, known = ".".join(filter(None, place)), self.kept.get(place, MISSING)
        if holds_left(known):
            return
        if is_plain(new) and known is not MISSING and known != new:
            self.kept[place] = LeftValue(name)  # each mode leaves something else
            return
        self.kept[place] = standing_for(new, name, CONSTANTS)


def _of_both(own: Places, others: Places) -> dict[str, Outside]:
    """The places of two methods; two of one name are told apart."""
    made = dict(own)
    for name, place in others.items():
        while name in made and not _is_same(made[name], place):
            name += "'"
        made[name] = place
    return made


def _is_same(one: Outside, other: Outside) -> bool:
    """Whether two places are one; those of defaults are made anew for each method."""
    named = one.name is not None and one.name == other.name
    return one.owner is other.owner or (named and one.get() is other.get())


def is_plain(value: Any) -> bool:
    """Whether a value is a constant, or a container of constants."""
    return all(isinstance(each, CONSTANTS) for each in _pytree.tree_leaves(value))


def _is_torchs(names: dict[str, object]) -> bool:
    """Whether a frame with these global names is of `nn.Module` itself."""
    return names.get("__name__") == nn.Module.__module__
