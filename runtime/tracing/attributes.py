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
    Facts,
    Outside,
    Place,
    Places,
    differences,
)
from synth.runtime.tracing.inputs import CONSTANTS
from synth.runtime.tracing.switches import Switches, read_by_users

Names = set[Place]
Paths = dict[Place, frozenset[str]]
ALL = "__dict__"  # stands for all attributes of a module
EVERY = "[:]"  # the path of all parts of a list


class Attributes:
    """What a run of one model read and wrote, or several.

    read: by code of the model, not by layers of torch.nn that are recorded as one call.
    called: those layers. written: attributes that differ after a run. first: those that
    were read before they were written. sought: those that were read and not there.
    changes: the values of written attributes before and after the last run. left: what
    runs left in those that have constants alone.
    caches: modules in which they left tensors or other objects. kept: place -> the
    paths in its value of what they leave, which a pass writes there; "" for all of it.
    read_later: places that another call may read, which does not leave the same there.
    before: what modules said before the last run. outside: where the model may read
    what is not in modules; what it wrote there has no module. switches: of torch, which
    code of the model read. changed: inputs that it changes in place. dtypes: whether
    the model reads those of tensors, which its graph has as constants. kinds: whether
    it asks which tensors are of floating-point or complex numbers.
    """

    def __init__(self, outside: Places = NOWHERE) -> None:
        self.outside = dict(outside)
        self.read: Names = set()
        self.called: set[str] = set()
        self.written: Names = set()
        self.first: Names = set()
        self.sought: Names = set()
        self.changes: dict[Place, tuple[Any, Any]] = {}
        self.left: dict[Place, Any] = {}
        self.caches: set[str] = set()
        self.kept: Paths = {}
        self.read_later: Names = set()
        self.before: Facts = {}
        self.switches: Switches = {}
        self.changed: set[str] = set()
        self.dtypes = self.kinds = False

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
        names = "read", "called", "written", "first", "sought"
        taken = {name: own[name] | vars(other)[name] for name in names}
        taken["read_later"] = self.read_later | self._left_to(other)
        taken["read_later"] |= other._left_to(self)
        taken["kept"] = _of_either(self.kept, other.kept)
        taken["outside"] = _of_both(self.outside, other.outside)
        taken["switches"] = self.switches | other.switches
        self.dtypes |= other.dtypes
        self.kinds |= other.kinds
        sizes = any(len(own[name]) != len(each) for name, each in taken.items())
        paths = any(taken[name] != own[name] for name in ("kept", "read_later"))
        own.update(taken)
        return sizes or paths

    def take_run(self, run: Attributes) -> None:
        """Take those of a run, in any mode, of the call that this is of."""
        self.take(run)
        self.left |= run.left
        self.caches |= run.caches
        self.changed |= run.changed

    def _left_to(self, other: Attributes) -> Names:
        """Where calls leave what others may read, which do not leave the same."""
        return {
            place
            for place, paths in self.kept.items()
            if other.is_read(*place) and not paths <= other.kept.get(place, set())
        }

    @contextmanager
    def seen(self, model: nn.Module, inside: Callable[[], bool]) -> Iterator[None]:
        """Note what a model that runs in here reads and writes.

        inside: whether a layer is running that is recorded as one call.
        """
        before = Description(model)
        names = {id(each): name for name, each in before.modules.items()}
        put, made = nn.Module.__setattr__, Names()

        def read(module: nn.Module, name: str) -> object:
            known = names.get(id(module))
            counts = known is not None and name not in INTERNAL and not inside()
            if counts and not (name == ALL and _is_torchs(sys._getframe(1).f_globals)):
                self.read.add((str(known), name))
                held = before.facts.get(Fact(str(known), "attribute", name), MISSING)
                own = object.__getattribute__(module, "__dict__")
                same = held is own.get(name, MISSING)
                if same and (known, name) not in made:  # an equal number may be new
                    found = self.sought if held is MISSING else self.first
                    found.add((str(known), name))
            return object.__getattribute__(module, name)

        def write(module: nn.Module, name: str, value: Any) -> None:
            made.add((names.get(id(module), OUTSIDE), name))
            put(module, name, value)

        kind: Any = nn.Module
        kind.__getattribute__, kind.__setattr__ = read, write
        try:
            with read_by_users(self.switches):
                yield
        finally:
            del kind.__getattribute__
            kind.__setattr__ = put
        now = Description(model).facts
        found = [
            each.fact
            for each in differences(before.facts, now)
            if each.fact.kind == "attribute"
        ]
        whole = dict.fromkeys(each._replace(path="") for each in found)
        places = {(each.module, each.name): each for each in whole}
        self.written |= places.keys()
        self.changes = {p: (before.facts.get(f), now.get(f)) for p, f in places.items()}
        self.before = before.facts

    def forget_values(self) -> None:
        """Keep no values of the model alive but constants."""
        for place, (_, new) in self.changes.items():
            if is_plain(new):
                self.left[place] = new
            else:
                self.caches.add(place[0])
        self.changes, self.before = {}, {}

    def leaves(self, module: str, name: str) -> bool:
        """Whether the last run leaves something in an attribute that it has changed.

        Not in one that it reads first, but for containers that it changes: these are
        constants for the graph, or refused.
        """
        old, new = self.changes[module, name]
        read = (module, name) in self.first and (is_plain(new) or old is not new)
        return module != OUTSIDE and not read

    def note_left(self, fact: Fact) -> None:
        """Note a place in which a run leaves something."""
        place = fact.module, fact.name
        self.kept[place] = self.kept.get(place, frozenset()) | {fact.path}

    def is_left(self, fact: Fact) -> bool:
        """Whether a pass writes what is at a place, so that no change there counts.

        Not if another call reads it before one writes it.
        """
        place = fact.module, fact.name
        paths = self.kept.get(place)
        if paths is None or fact.kind != "attribute" or self.is_read_later(place):
            return False
        return not fact.path or any(_is_in(fact.path, each) for each in paths)

    def is_read_later(self, place: Place) -> bool:
        """Whether a call may read what another call leaves in an attribute."""
        whole = "" in self.kept.get(place, ())
        before = whole and place in self.first | self.sought
        return before or place in self.read_later

    def leaves_all(self, module: str, name: str) -> bool:
        """Whether a pass writes all of an attribute, so that no change there counts."""
        place = module, name
        every = not {"", EVERY}.isdisjoint(self.kept.get(place, ()))
        return every and not self.is_read_later(place)


def _is_in(path: str, left: str) -> bool:
    """Whether a path is one that is left, or inside of it."""
    if left.endswith(EVERY):
        return path.startswith(left.removesuffix(EVERY) + "[")
    return path.startswith(left) and path[len(left) : len(left) + 1] in ("", *"[. ")


def _of_either(own: Paths, others: Paths) -> Paths:
    none = frozenset[str]()
    return {at: own.get(at, none) | others.get(at, none) for at in own | others}


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
