"""What the code of a model reads outside of its modules.

These are globals, attributes of imported files and of classes, variables of functions
around it, and defaults of arguments: what the functions name that `forward` may come
to. Another value can change what the model computes, as that of an attribute can.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import os
import pickle
import random
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from synth.runtime.tracing.attributes import Attributes, is_plain
from synth.runtime.tracing.facts import (
    CONTAINERS,
    DEEPEST,
    LIBRARIES,
    MISSING,
    OUTSIDE,
    Description,
    Fact,
    Facts,
    Outside,
    Places,
    Surroundings,
    classes_of,
    differences,
)
from synth.runtime.tracing.inputs import CONSTANTS


def outside(model: nn.Module) -> Places:
    """The places outside of modules that a model may read, by the names of users."""
    search = _Search(model)
    while search.functions:
        search.follow(search.functions.pop())
    return search.places


class _Search:
    """Functions that may run, and what they name.

    functions: still to be followed. places: what was found.
    """

    def __init__(self, model: nn.Module) -> None:
        self.functions: list[types.FunctionType] = []
        self.places: dict[str, Outside] = {}
        self._known: set[Any] = set()
        self._methods: dict[str, list[Any]] = {}
        own = (each for each in classes_of(model) if not _is_library(each))
        self._classes = dict.fromkeys(own)
        for cls in self._classes:
            for name, value in vars(cls).items():
                self._methods.setdefault(name, []).append(value)
        for method in self._methods.get("forward", ()):
            self._reach(method)
        for fact, value in Description(model).facts.items():
            if fact.kind != "class":
                self._reach(value)

    def _reach(self, value: Any) -> None:
        """Follow a function, whatever wraps it."""
        for _ in range(DEEPEST):
            if isinstance(value, types.FunctionType) and not _is_around(value):
                if value not in self._known and not _is_library(value):
                    self._known.add(value)
                    self.functions.append(value)
                return
            for wraps in ("__func__", "func", "fget", "__wrapped__"):
                inner = inspect.getattr_static(value, wraps, None)
                if inner is not None:
                    value = getattr(value, wraps)
                    break
            else:
                return

    def follow(self, function: types.FunctionType) -> None:
        """Find what a function names."""
        read, named = set[str](), set[str]()
        for code in _codes(function.__code__):
            read |= _globals_of(code)
            named.update(code.co_names)
        # others than identifiers are those of asserts that pytest rewrote
        written = filter(str.isidentifier, read)
        # in one order on all ranks, whose hashes of words differ
        for name in sorted(function.__globals__.keys() & written):
            self._find(name, Outside(function.__globals__, name), named)
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            if name != "__class__":
                self._find(name, Outside(cell, None), named)
        for name, value in _defaults(function):
            if not isinstance(value, CONSTANTS):
                shown = f"{function.__qualname__}({name})"
                self._find(shown, Outside({name: value}, name), named)
        for name in sorted(named & self._methods.keys()):
            for method in self._methods[name]:
                self._reach(method)

    def _find(self, shown: str, place: Outside, named: set[str]) -> None:
        """Take what is at a place, and the parts of it that a function names."""
        value = place.get()
        if value is MISSING:
            return
        environment = value is os and named & {"environ", "getenv"}
        if environment or value is os.environ or value is os.getenv:
            self.places["os.environ"] = Outside(vars(os.environ), "_data")
            return
        own = isinstance(value, nn.Module | functools.partial)
        library = callable(value) and not own and _is_library(value)
        if isinstance(value, types.ModuleType | type):
            if not _is_library(value) and value not in self._classes:
                owner = value if isinstance(value, type) else vars(value)
                for name in sorted(named & vars(value).keys()):
                    self._find(f"{shown}.{name}", Outside(owner, name), named)
        else:
            self._reach(value)
            for cls in () if library else type(value).__mro__:
                own_names = () if _is_library(cls) else named & vars(cls).keys()
                for name in sorted(own_names):
                    self._reach(vars(cls)[name])
        imported = library and getattr(value, "__name__", None) in (place.name, None)
        key = id(place.owner), place.name
        if key not in self._known and not imported and not _is_file(value):
            self._known.add(key)
            self.places[self._name(shown, place)] = place

    def _name(self, shown: str, place: Outside) -> str:
        """The name of a place, with its file if another has the same name."""
        if shown not in self.places:
            return shown
        file = place.owner.get("__name__") if isinstance(place.owner, dict) else None
        return f"{file or len(self.places)}.{shown}"


def _is_around(function: types.FunctionType) -> bool:
    """Whether a function is our own around one of a user, as of `with_method`."""
    file = str(function.__globals__.get("__name__"))
    return file.startswith("synth.") and hasattr(function, "__wrapped__")


def _is_library(value: Any) -> bool:
    """Whether a class, a function or a file is torch's, Python's or our own."""
    named = getattr(value, "__name__" if _is_file(value) else "__module__", None)
    return named is None or named.partition(".")[0] in LIBRARIES


def _is_file(value: Any) -> bool:
    return isinstance(value, types.ModuleType)


@functools.cache
def _globals_of(code: types.CodeType) -> frozenset[str]:
    found = dis.get_instructions(code)
    return frozenset(
        each.argval for each in found if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of functions inside of it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _defaults(function: types.FunctionType) -> Iterable[tuple[str, Any]]:
    values = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(values) :]
    yield from zip(names, values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def drawn_from(values: Iterable[Any]) -> list[Any]:
    """The states of the generators of Python and numpy, also of those among values."""
    numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
    states = [random.getstate(), None if numpy is None else numpy.get_state()]
    for each in values:
        if isinstance(each, random.Random):
            states.append(each.getstate())
        elif numpy is not None and isinstance(each, numpy.RandomState):
            states.append(each.get_state())
        elif numpy is not None and isinstance(each, numpy.Generator):
            states.append(each.bit_generator.state)
    return list(map(pickle.dumps, states))


def require_no_iterators(seen: Attributes, facts: Facts) -> None:
    """Raise `ValueError` for iterators that a run may have taken values of."""
    for fact, value in facts.items():
        read = fact.outside or seen.is_read(fact.module, fact.name)
        own = type(value).__module__ in ("builtins", "itertools")  # no files, and so on
        if read and own and not fact.path and isinstance(value, Iterator):
            raise ValueError(
                f"forward reads {fact}, a {type(value).__name__}, whose next values the"
                " ranks would not take: they repeat what is traced; take them before"
                " each call, and give them as an argument or set them on the network"
            )


class Kept:
    """What is outside of a model's modules at one time: in their classes, at places.

    A run may change it; then it is put back.
    """

    def __init__(self, model: nn.Module, places: Places) -> None:
        self._classes, self._places = classes_of(model), dict(places)
        found = self._described()
        self._facts = found.facts
        self._values = [each.get() for each in self._places.values()]
        self._slots = [(each, each.get()) for each in found.slots]
        self._own = [dict(vars(each)) for each in self._classes]
        self._parts = [
            (each, copy.copy(each))
            for each in found.containers
            if type(each) in CONTAINERS  # others may be caches with keys of their own
        ]

    def _described(self) -> Surroundings:
        return Surroundings.of(self._classes, self._places)

    def put(self, name: str, value: Any) -> None:
        """Another value at a place. A container stays, with other parts."""
        place = self._places[name]
        held = place.get()
        if isinstance(held, CONTAINERS):
            _fill(held, value)
        else:
            place.put(value)

    def note_changes(self, seen: Attributes) -> list[str]:
        """Take what is not as it was for written by a run, and return its names."""
        for fact, _, _ in differences(self._facts, self._described().facts):
            name, at = fact.outside, self._place_of(fact)
            seen.written.add((OUTSIDE, name))
            seen.outside[name] = at
            if is_plain(at.get()):
                seen.first.add((OUTSIDE, name))
                seen.left[OUTSIDE, name] = copy.deepcopy(at.get())
        return [name for module, name in seen.written if module == OUTSIDE]

    def _place_of(self, fact: Fact) -> Outside:
        """Where a fact is, or what it is a part of."""
        attribute = re.match(r"\.(\w+)", fact.path)
        if fact.kind == "class" and attribute:
            names = {each.__qualname__: each for each in self._classes}
            return Outside(names[fact.name], attribute[1])
        place = self._places[fact.name]
        return Outside(place.get(), attribute[1]) if attribute else place

    def put_back(self) -> None:
        """Let all be as it was."""
        for place, value in zip(self._places.values(), self._values, strict=True):
            _put(place, value)
        for place, value in self._slots:
            _put(place, value)
        for cls, before in zip(self._classes, self._own, strict=True):
            for name in {**before, **vars(cls)}:
                _put(Outside(cls, name), before.get(name, MISSING))
        for container, parts in self._parts:
            if not _has(container, parts):
                _fill(container, parts)


def _put(place: Outside, value: Any) -> None:
    if place.get() is not value:
        place.put(value)


def _fill(container: Any, parts: Any) -> None:
    container.clear()
    add = "extend" if isinstance(container, list | deque) else "update"
    getattr(container, add)(parts)


def _has(container: Any, parts: Any) -> bool:
    try:
        return bool(container == parts)  # identity first
    except Exception:  # tensors
        return False
