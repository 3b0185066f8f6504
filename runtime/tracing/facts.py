"""What the modules of a model say: their classes, attributes, tensors, parts and hooks.

Two descriptions are compared to find what was changed between them, by name.
"""

from __future__ import annotations

import argparse
import contextvars
import functools
import re
import sys
import threading
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from synth.runtime.tracing.computed_weights import computed_weights

# what every module has; its attributes are the others
INTERNAL = frozenset(vars(nn.Module())) | {"_is_full_backward_hook"}
STORED = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}
HOOKS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
CONTAINERS = list, deque, set, dict
LIBRARIES = {*sys.stdlib_module_names, "torch", "synth"}  # without settings of a model
IN_PLACE = " in place"  # the path of the words of a tensor or an array
DTYPE = ".dtype"  # the path of that of a parameter or buffer
PARTIAL = "func", "args", "keywords"
WRAPPERS = tuple, functools.partial, types.MethodType
SETTINGS = (
    *(types.SimpleNamespace, argparse.Namespace, threading.local),
    contextvars.ContextVar,
)
ORDER = " in order"  # the path of the names of modules
OUTSIDE = "outside"  # stands for a module
DEEPEST = 16  # parts of parts that are followed


class Fact(NamedTuple):
    """What a value is: of a module, by its name; of a kind; with a name.

    kind: "class", "global", "mode", "attribute", "parameter", "buffer", "module", or a
        hook.
    path: where the value is inside of an attribute, such as "[2]" or ".width"; "".
    """

    module: str
    kind: str
    name: str
    path: str = ""

    def __str__(self) -> str:
        """The name by which a user knows it."""
        names = (self.module, self.name)
        return ".".join(each for each in names if each) + self.path

    @property
    def outside(self) -> str:
        """The name of what is outside of modules, without its parts; "" if inside."""
        own = self.name and self.kind in ("class", "global")
        return re.split(r"[\[ ]", str(self))[0] if own else ""


Facts = dict[Fact, Any]
Place = tuple[str, str]  # (module, attribute)
Deep = Callable[[str, str], bool]


class Difference(NamedTuple):
    """A fact with its value in two descriptions; `MISSING` where there is none."""

    fact: Fact
    before: Any
    now: Any


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


class Outside(NamedTuple):
    """A place outside of modules: a name in a dict or a class, or a slot of an object.

    Without a name a cell, or a variable of the context.
    """

    owner: Any
    name: str | None

    def get(self) -> Any:
        """The value that is there now; `MISSING` for none."""
        if isinstance(self.owner, contextvars.ContextVar):
            return self.owner.get(MISSING)
        if self.name is None:
            try:
                return self.owner.cell_contents
            except ValueError:  # of a variable that has no value
                return MISSING
        if not hasattr(self.owner, "__dict__") and not isinstance(self.owner, dict):
            return getattr(self.owner, self.name, MISSING)
        held = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return held.get(self.name, MISSING)

    def put(self, value: Any) -> None:
        """Another value; `MISSING` for none."""
        if isinstance(self.owner, contextvars.ContextVar):
            if value is not MISSING:
                self.owner.set(value)
        elif self.name is None:
            self.owner.cell_contents = value
        elif isinstance(self.owner, dict):
            self.owner[self.name] = value
        elif value is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def __deepcopy__(self, memo: Any) -> Outside:
        return self  # a copy of a model has the same globals


Places = Mapping[str, Outside]  # by the names of users
NOWHERE: Places = types.MappingProxyType({})


def nothing(fact: Fact) -> bool:
    """All facts count."""
    return False


class Surroundings:
    """What is outside of the modules of a model: in their classes, and at places.

    containers: dicts, lists, sets and views of classes, which hold all facts but those
        at the places. slots: of objects that have no dict, and variables of the
        context. constants: tensors and arrays in them. Nothing is copied.
    """

    def __init__(self, left: Callable[[Fact], bool] = nothing) -> None:
        self.facts: Facts = {}
        self.left = left
        self.containers: list[Any] = []
        self.slots: list[Outside] = []
        self.constants: list[Any] = []
        self._seen: set[int] = set()

    @classmethod
    def of(cls, classes: Iterable[type], places: Places) -> Surroundings:
        """Those of a model with modules of some classes."""
        made = cls()
        made._add_outside(classes, places)
        return made

    def _add_outside(self, classes: Iterable[type], places: Places) -> None:
        for cls in classes:
            self.containers.append(vars(cls))
            for name, value in vars(cls).items():
                fact = Fact("", "class", cls.__qualname__, f".{name}")
                self.facts[fact] = value
                if not name.startswith("__"):
                    self._add_parts(fact, value)
        for name, place in places.items():
            fact = Fact("", "global", name)
            self.facts[fact] = place.get()
            self._add_parts(fact, place.get())

    def _add_parts(self, fact: Fact, value: Any, depth: int = 0) -> None:
        """The parts of a container, or of an object, and of their parts."""
        words = words_of(value)
        if words is not None:
            self.constants.append(value)
            self.facts[fact._replace(path=f"{fact.path}{IN_PLACE}")] = words
            return
        if id(value) in self._seen or depth > DEEPEST:
            return
        if isinstance(value, CONTAINERS):
            self.containers.append(value)
        elif has_settings(value):
            self.containers += [vars(value)] if hasattr(value, "__dict__") else []
            self.slots += slots_of(value)
        elif not isinstance(value, WRAPPERS):
            return
        self._seen.add(id(value))
        for _, path, part in parts_within(value):
            inner = fact._replace(path=fact.path + path)
            if not self.left(inner):
                self.facts[inner] = part
                self._add_parts(inner, part, depth + 1)


def every(module: str, name: str) -> bool:
    """All attributes are followed into their parts."""
    return True


class Description(Surroundings):
    """The facts of a model, and of what is outside of its modules.

    deep: (module, attribute) -> whether the parts of its value are facts, too.
    containers: first those of `modules`. stored: the dicts of parameters, buffers and
    modules.
    """

    def __init__(
        self,
        model: nn.Module,
        deep: Deep = every,
        places: Places = NOWHERE,
        left: Callable[[Fact], bool] = nothing,
    ) -> None:
        super().__init__(left)
        self.stored: list[dict[str, Any]] = []
        self.modules = dict(model.named_modules())
        self._seen |= {id(each) for each in self.modules.values()}
        self.containers += map(vars, self.modules.values())  # first, in this order
        for name, module in self.modules.items():
            self._add(name, module, deep)
        self._add_outside(classes_of(model), places)

    def _add(self, name: str, module: nn.Module, deep: Deep) -> None:
        own = vars(module)
        self.facts[Fact(name, "class", "")] = type(module)
        self.facts[Fact(name, "mode", "training")] = module.training
        for place, kind in STORED.items():
            self.stored.append(own[place])
            for key, value in own[place].items():
                self.facts[Fact(name, kind, key)] = value
                if isinstance(value, torch.Tensor):
                    self.facts[Fact(name, kind, key, DTYPE)] = value.dtype
        self.facts[Fact(name, "module", "", ORDER)] = tuple(own["_modules"])
        for place, kind in HOOKS.items():
            self.containers.append(own[place])
            for number, hook in own[place].items():
                self.facts[Fact(name, kind, "", f"[{number}]")] = hook
        apart = INTERNAL | computed_weights(module).keys()
        for key, value in own.items():
            if key not in apart:
                fact = Fact(name, "attribute", key)
                if not self.left(fact):
                    self.facts[fact] = value
                if deep(name, key):
                    self._add_parts(fact, value)


def parts_within(value: Any) -> Iterator[tuple[Any, str, Any]]:
    """The parts of a container or an object: key, path and value.

    The key is `MISSING` where no other value can be put there by one.
    """
    if isinstance(value, list | tuple | deque):
        for number, part in enumerate(value):
            yield number, f"[{number}]", part
    elif isinstance(value, dict):
        for key, part in [*value.items()]:  # which may change while one looks at them
            yield key, f"[{key!r}]", part
    elif isinstance(value, set):
        yield MISSING, " as a set", frozenset(value)
    elif isinstance(value, functools.partial):
        yield from ((MISSING, f".{name}", getattr(value, name)) for name in PARTIAL)
    elif isinstance(value, types.MethodType):
        yield MISSING, ".__self__", value.__self__
    elif has_settings(value):
        for key, part in getattr(value, "__dict__", {}).items():
            yield key, f".{key}", part
        for place in slots_of(value):
            yield MISSING, f".{place.name or 'get()'}", place.get()


def tensors_within(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """The tensors in a value, in containers and in objects of classes of users.

    Not in modules, libraries and classes. seen: what was looked at, by id.
    """
    seen = set() if seen is None else seen
    if isinstance(value, nn.Module | types.ModuleType | type) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    for _, _, part in parts_within(value):
        yield from tensors_within(part, seen)


def slots_of(value: Any) -> list[Outside]:
    """The slots of an object, or the value of a variable of the context."""
    if isinstance(value, contextvars.ContextVar):
        return [Outside(value, None)]
    named = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    every = (each for n in named for each in ((n,) if isinstance(n, str) else n))
    return [Outside(value, n) for n in every if n not in ("__dict__", "__weakref__")]


def has_settings(value: Any) -> bool:
    """Whether an object has settings of a model: it is of a class of the user's."""
    kind = type(value)
    if kind in SETTINGS or isinstance(value, nn.Module):
        return True
    named = value if kind is types.FunctionType else kind
    own = hasattr(value, "__dict__") or any(
        "__slots__" in vars(k) for k in kind.__mro__
    )
    return own and str(named.__module__).partition(".")[0] not in LIBRARIES


def words_of(value: Any) -> Any:
    """What tells that a tensor or an array was changed in place; None for others.

    An array is all that shares its memory: numpy's, bytearrays, those of Python.
    """
    if isinstance(value, torch.Tensor):
        plain = type(value) in (torch.Tensor, nn.Parameter) and not value.is_quantized
        if not plain or not value.is_cpu or value.layout != torch.strided:
            return 0 if value.is_inference() else value._version
        words = value.detach().resolve_conj().resolve_neg().reshape(-1)
        return zlib.crc32(words.contiguous().view(torch.uint8).numpy().data)
    if isinstance(value, str | bytes):
        return None
    try:
        memory = memoryview(value)
        if memory.readonly and not memory.ndim:  # a single number
            return None
        return zlib.crc32(memory if memory.c_contiguous else memory.tobytes())
    except (TypeError, ValueError, BufferError):  # what has no memory to show
        return None


def classes_of(model: nn.Module) -> list[type]:
    """The classes of modules but `nn.Module` and what is above it, each once."""
    every = (each for module in model.modules() for each in type(module).__mro__)
    above = set(nn.Module.__mro__)
    return list(dict.fromkeys(each for each in every if each not in above))


def differences(before: Facts, now: Facts) -> list[Difference]:
    """The facts whose values differ, in their order."""
    found = []
    for fact in {**before, **now}:
        pair = before.get(fact, MISSING), now.get(fact, MISSING)
        if not same_value(*pair):
            found.append(Difference(fact, *pair))
    return found


def same_value(one: Any, other: Any) -> bool:
    """Whether two values are one object, or equal and no tensors or modules."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor | nn.Module):
        return False
    try:
        return bool(one == other)
    except Exception:  # arrays, and objects that cannot be compared
        return False
