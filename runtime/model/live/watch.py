"""A model and what it said when it was last followed: whether it still says that.

A pass compares all that may be changed with what it was, in a few calls that run in C.
A description by name is made only where more differs than numbers and modes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import chain
from operator import is_
from typing import Any

from torch import nn

from synth.runtime.model.live.changes import Changes, Settings, sorted_out
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.facts import (
    CONTAINERS,
    INTERNAL,
    MISSING,
    Description,
    Difference,
    Fact,
    Facts,
    differences,
    words_of,
)
from synth.runtime.tracing.left_values import Left, part_of

PLAIN = bool, int, float, complex, str, bytes, type(None)


class Watch:
    """What a model says, kept to be compared.

    attributes: which of them its forward reads; the parts of their values count, too.
    stamp: another object each time that the model is followed.
    """

    facts: Facts
    _copies: list[Any]

    def __init__(self, model: nn.Module, attributes: Attributes) -> None:
        self._model, self.attributes = weakref.ref(model), attributes
        self.renew(self.described())

    @property
    def model(self) -> nn.Module | None:
        """The model, as long as it lives."""
        return self._model()

    def described(self) -> Description:
        """What the model says now."""
        model = self.model
        assert model is not None  # its owner has it
        seen = self.attributes
        return Description(model, self._is_deep, seen.outside, seen.is_left)

    def renew(self, found: Description | None) -> None:
        """Compare with the model as it is now from here on.

        found: its description; None for the differences that `changes` has last found.
        """
        self.stamp = object()
        if found is None:
            for place, each in self._moved:
                self._copies[place][each.fact.name] = self.facts[each.fact] = each.now
            return
        self.facts, self._names = found.facts, list(found.modules)
        self._containers = [each for each in found.containers if each]
        self._copies = [_copied(each) for each in self._containers]
        self._numbers = {id(each): at for at, each in enumerate(self._containers)}
        self._empty = [each for each in (*found.containers, *found.stored) if not each]
        self._stored = [each for each in found.stored if each]
        self._values = [each.values() for each in self._stored]  # views, which follow
        self._constants, self._slots = found.constants, found.slots
        self._parts = list(found.modules.values())[1:]  # the first is not kept alive
        self._kept, self._outside = self._of_tensors(), self._of_places()

    def take(self, containers: Iterable[Any], left: Iterable[Left]) -> None:
        """Compare with containers as they are from here on: a pass has changed them.

        left: what it has left in each of them.
        """
        parts = False
        for held, each in zip(containers, left, strict=True):
            at = self._numbers.get(id(held))
            if at is not None:
                self._copies[at] = _copied(held)
            later = self.attributes.is_read_later((each.module, each.name))
            if held is None or not later:
                continue
            value = part_of(held, each.key)
            if not each.keys:
                self.facts[Fact(each.module, "attribute", each.name)] = value
            parts |= bool(each.keys) or not isinstance(value, PLAIN)
        if parts:  # in which the user may change something
            self.renew(self.described())

    def same(self) -> bool:
        """Whether the model is as it was."""
        try:
            same = self._containers == self._copies  # identity first, all in C
        except Exception:  # a tensor or an array in the place of another
            return False
        return same and self._same_outside() and self._same_tensors()

    def _same_outside(self) -> bool:
        before, now = self._outside, self._of_places()
        return len(before) == len(now) and all(map(is_, before, now))

    def _of_places(self) -> list[Any]:
        return [
            each.get() for each in (*self.attributes.outside.values(), *self._slots)
        ]

    def _same_tensors(self) -> bool:
        if any(self._empty):
            return False
        (values, *kept), (now, *found) = self._kept, self._of_tensors()
        return len(values) == len(now) and all(map(is_, values, now)) and kept == found

    def _of_tensors(
        self,
    ) -> tuple[list[Any], list[Any], list[Any], list[str], list[Any]]:
        """The tensors and modules, their dtypes, classes and names, and the words of
        constants. Words of parameters and buffers are not compared.
        """
        values = list(chain.from_iterable(self._values))
        return (
            values,
            [getattr(each, "dtype", None) for each in values],
            [type(self.model), *map(type, self._parts)],
            list(chain.from_iterable(self._stored)),
            [*map(words_of, self._constants)],
        )

    def changes(self, settings: Settings) -> tuple[Changes, Description | None]:
        """What was changed, and the description that shows it; None for numbers only.

        settings: module -> attributes read at each call.
        """
        found, made = self._of_numbers(), None
        if found is None:
            made = self.described()
            found = differences(self.facts, made.facts)
        now = self.facts if made is None else made.facts
        return sorted_out(found, now, self.facts, self.attributes, settings), made

    def _of_numbers(self) -> list[Difference] | None:
        """The differences where modes and plain attributes differ alone; else None."""
        self._moved: list[tuple[int, Difference]] = []
        for place, (now, before) in enumerate(
            zip(self._containers, self._copies, strict=True)
        ):
            try:
                if now == before:
                    continue
            except Exception:  # tensors
                return None
            if place >= len(self._names) or now.keys() != before.keys():
                return None
            name = self._names[place]
            for key, value in now.items():
                pair = before[key], value
                if pair[0] is value:
                    continue
                kind = "mode" if key == "training" else "attribute"
                if kind != "mode" and key in INTERNAL:
                    return None
                if self.attributes.is_left(Fact(name, kind, key)):
                    before[key] = value
                    continue
                if not all(isinstance(each, PLAIN) for each in pair):
                    return None
                each = Difference(Fact(name, kind, key), *pair)
                self._moved.append((place, each))
        same = self._same_outside() and self._same_tensors()
        return [each for _, each in self._moved] if same else None

    def copied(self, model: nn.Module, memo: dict[int, Any]) -> Watch:
        """The same for a copy of the model, with what changed before it was copied.

        memo: id -> the copy, as `copy.deepcopy` fills it.
        """
        made = Watch(model, self.attributes)
        facts = {fact: memo.get(id(v), v) for fact, v in self.facts.items()}
        if differences(facts, made.facts):
            made.facts, made._names = facts, []
            made._containers, made._copies, made._numbers = [MISSING], [0], {}
        return made

    def _is_deep(self, module: str, name: str) -> bool:
        seen = self.attributes
        if seen.leaves_all(module, name):
            return False
        return seen.is_called(module) or seen.is_read(module, name)


def _copied(container: Any) -> Any:
    kind = next((each for each in CONTAINERS if isinstance(container, each)), dict)
    return kind(container)
