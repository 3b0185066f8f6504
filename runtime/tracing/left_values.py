"""What forward leaves in attributes of modules, which a pass of a network writes there.

Auxiliary losses and features are often left in attributes. The ranks run the calls of
a graph, not `forward`: its tensors are further outputs of the graph. What ranks do not
compute is refused where it is read, as it would be that of an earlier pass. `LeftParts`
finds what a run of forward leaves in attributes of modules, and in parts of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn
from torch.utils import _pytree

from synth.runtime.tracing.attributes import EVERY, Attributes, is_plain
from synth.runtime.tracing.facts import MISSING, Fact, parts_within, tensors_within
from synth.runtime.tracing.outputs import Structure

OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or"),
    *("radd", "rsub", "rmul", "rtruediv", "rpow", "rmatmul", "iadd", "isub", "imul"),
    *("neg", "abs", "float", "int", "bool", "index", "len", "iter", "getitem", "call"),
    *("lt", "le", "gt", "ge", "contains", "setitem", "array"),
)
Node = Callable[[torch.Tensor], Any]  # that of a tensor in a graph; None for none


class LeftValueError(AttributeError, RuntimeError):
    """Something is read that forward leaves in an attribute."""


class LeftValue:
    """Stands for what ranks do not compute of it; whatever uses it raises."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}, which forward leaves and ranks do not compute>"

    def __deepcopy__(self, memo: dict[int, Any]) -> LeftValue:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Refuse what torch is called with."""
        leaves = _pytree.tree_leaves((args, kwargs))
        raise next(each for each in leaves if isinstance(each, cls))._error()

    def _error(self) -> LeftValueError:
        return LeftValueError(
            f"forward leaves {self.name} in an attribute, which the ranks do not"
            " compute; let forward return it too, and take it from the outputs"
        )


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: LeftValue, *args: Any) -> NoReturn:
        raise self._error()

    refuse.__name__ = name
    return refuse


for _name in OPERATORS:
    setattr(LeftValue, f"__{_name}__", _refusing(f"__{_name}__"))


class Left(NamedTuple):
    """What forward leaves in an attribute of a module, or in a part of its value.

    keys: of the part, in containers that forward changes; () for the attribute itself.
    The last one counts from the end of a list to which each pass appends it (appended),
    and is a slice for all parts of a list. given: its tensors and what is around them;
    None for what ranks cannot make. nodes: of these tensors, None for one that they do
    not compute. places: of the tensors among the outputs of the graph, once that gives
    them.
    """

    module: str
    name: str
    keys: tuple[Any, ...]
    appended: bool
    given: Structure | None
    nodes: tuple[Any, ...] = ()
    places: tuple[int | None, ...] = ()

    @property
    def label(self) -> str:
        """The attribute, for messages."""
        return ".".join(filter(None, (self.module, self.name)))

    def filled(self, outs: Sequence[Any] | None) -> Any:
        """What is left by a pass that gives some outputs; None for none of them."""
        refused = LeftValue(self.label)
        if self.given is None:
            return refused
        places = self.places if outs is not None else (None,) * len(self.places)
        found = (refused if at is None else (outs or ())[at] for at in places)
        return self.given.filled([*found])

    def holder(self, model: nn.Module) -> Any:
        """The container that has it, in the modules of a model; None for none."""
        module = _module(model, self.module)
        held: Any = None if module is None else vars(module)
        for key in (self.name, *self.keys)[:-1]:
            held = part_of(held, key)
        return held

    @property
    def key(self) -> Any:
        """That of the part in its container."""
        return (self.name, *self.keys)[-1]


LeftByMode = Mapping[bool, Sequence[Left]]  # by the mode of the module


def every_left(left: LeftByMode) -> list[Left]:
    """What a pass leaves in any mode."""
    return [each for found in left.values() for each in found]


def now_left(model: nn.Module, left: LeftByMode) -> Iterator[Left]:
    """What a pass leaves in the modes in which the modules of a model now are."""
    for mode, found in left.items():
        for each in found:
            module = _module(model, each.module)
            if module is not None and module.training == mode:
                yield each


def leave(
    model: nn.Module, left: Iterable[Left], outs: Sequence[Any] | None
) -> list[Any]:
    """Write what a pass leaves. Returns the containers that have it.

    outs: what the graph gives; None where nothing may be taken of it.
    """
    pairs = [(each, each.holder(model)) for each in left]
    for each, held in pairs:
        if held is not None:
            put(held, each, each.filled(outs))
    return [held for _, held in pairs]


def tensors_left(
    model: nn.Module, left: Iterable[Left]
) -> Iterator[tuple[str, torch.Tensor]]:
    """What a pass has left, by names: the tensors that ranks compute."""
    for each in left:
        if each.given is not None and each.places and None not in each.places:
            value = Structure(part_of(each.holder(model), each.key))
            yield from zip(each.given.names, value.tensors, strict=False)


def _module(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:  # of another one, which the network has instead
        return None


def part_of(held: Any, key: Any) -> Any:
    """A part of a container or of an object; None where there is none."""
    if isinstance(held, dict):
        return held.get(key)
    if isinstance(held, list | tuple | deque):
        there = isinstance(key, slice) or -len(held) <= key < len(held)
        return held[key] if there else None
    return getattr(held, "__dict__", {}).get(key)


def put(held: Any, left: Left, value: Any) -> None:
    """Put a part into the container, or the object, that has it."""
    if isinstance(held, dict):
        held[left.key] = value
    elif not isinstance(held, list | deque):
        vars(held)[left.key] = value
    elif left.appended:
        held.append(value)
    elif isinstance(left.key, slice) or left.key < len(held):
        held[left.key] = value
    else:  # others were taken out since
        held.append(value)


class _Part(NamedTuple):
    """A value that a run leaves. fact: its place. grown: if it is all that a list has,
    the list, and how many parts that had before and after the run; None for others.
    """

    fact: Fact
    keys: tuple[Any, ...]
    value: Any
    grown: tuple[Any, int, int] | None = None


class LeftParts:
    """What the run leaves that was seen last.

    seen: what it read and wrote; its `kept` gets the paths. node: of a tensor. made:
    whether each run of forward would make the same tensor.
    """

    def __init__(
        self, seen: Attributes, node: Node, made: Callable[[torch.Tensor], bool]
    ) -> None:
        self.seen, self.node, self.made = seen, node, made
        self.walked = set[int]()
        self.parts = [
            part
            for (module, name), (old, new) in seen.changes.items()
            if seen.leaves(module, name)
            for part in self._of(Fact(module, "attribute", name), (), old, new)
        ]

    def tensors_now(self, model: nn.Module) -> list[torch.Tensor]:
        """All that the attributes have in which something is left."""
        places = {(each.fact.module, each.fact.name): None for each in self.parts}
        now = (vars(model.get_submodule(m)).get(name) for m, name in places)
        return [*tensors_within([*now])]

    def found(self) -> list[Left]:
        """All that is left, once the model has run again.

        A list that is longer by as many parts then is one to which forward appends. Of
        another one that has more or fewer than before, each run makes all parts anew.
        """
        return [made for part in self.parts for made in self._left(part)]

    def _left(self, part: _Part) -> Iterator[Left]:
        fact, keys, value, grown = part
        if grown is None:
            if not self._is_cached(fact, value):
                yield self._made(fact, keys, value)
            return
        held, before, after = grown
        every = fact._replace(path=fact.path + EVERY)
        if isinstance(held, deque):  # which may drop others
            yield self._made(every, (*keys, -1), held, appended=True)
        elif len(held) - after == after - before > 0:
            for at in range(before, after):
                yield self._made(every, (*keys, at - after), value[at], appended=True)
        else:
            yield self._made(every, (*keys, slice(None)), value)

    def _is_cached(self, fact: Fact, value: Any) -> bool:
        """Whether a value of constant tensors is one that was not there before.

        Each graph makes it anew, as if no pass had left it, such as a mask by extents.
        """
        tensors = [*tensors_within([value])]
        added = fact not in self.seen.before
        return added and bool(tensors) and all(map(self.made, tensors))

    def _made(
        self, fact: Fact, keys: tuple[Any, ...], value: Any, appended: bool = False
    ) -> Left:
        self.seen.note_left(fact)
        given, nodes = _structure(fact, value), tuple[Any, ...]()
        if given is not None:
            nodes = tuple(map(self.node, given.tensors))
            given = given.without_tensors()
        return Left(fact.module, fact.name, keys, appended, given, nodes)

    def _of(
        self, fact: Fact, keys: tuple[Any, ...], old: Any, new: Any
    ) -> Iterator[_Part]:
        """The parts of a value that differ from what they were; the whole of a new one.

        Constants in containers stay: they may count.
        """
        if old is not new:
            yield _Part(fact, keys, new)
            return
        if id(new) in self.walked or isinstance(new, nn.Module):
            return
        self.walked.add(id(new))
        before, known = self.seen.before, 0
        if isinstance(new, list | deque):
            while fact._replace(path=f"{fact.path}[{known}]") in before:
                known += 1
            if known != len(new) or isinstance(new, deque):
                yield _Part(fact, keys, [*new], (new, known, len(new)))
            if isinstance(new, deque):
                return
        for key, path, value in parts_within(new):
            inner = fact._replace(path=fact.path + path)
            was = before.get(inner, MISSING)
            if key is MISSING:
                continue
            if was is value:
                yield from self._of(inner, (*keys, key), was, value)
            elif not is_plain(value) and (
                was is not MISSING or not isinstance(new, list)
            ):
                yield _Part(inner, (*keys, key), value)


def _structure(fact: Fact, value: Any) -> Structure | None:
    """The tensors of a value and what is around them; None for what has others."""
    try:
        made = Structure(value, str(fact))
    except ValueError:
        return None
    return made if made.tensors or is_plain(value) else None
