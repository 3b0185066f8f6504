"""Finds what a run of forward leaves in attributes of modules, and in parts of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from synth.runtime.tracing.attributes import EVERY, Attributes, is_plain
from synth.runtime.tracing.facts import MISSING, Fact, parts_within, tensors_within
from synth.runtime.tracing.left_values import Left
from synth.runtime.tracing.outputs import Structure

Node = Callable[[torch.Tensor], Any]  # that of a tensor in a graph; None for none


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
