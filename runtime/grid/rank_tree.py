"""A tree of ranks, over which they combine values through the store.

The numbers of the ranks are written in base 4. The parent of a rank has its last digit
that is not 0 replaced by 0. So a rank has at most 3 log4 P children, each of a higher
number, and all values meet in rank 0 after log4 P steps.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from synth.runtime.grid.seals import sealed, unsealed

BASE = 4
DIRECT = 16  # ranks that tell each other directly what they would tell along the tree
FORGED = 0.05  # seconds until a value that no rank wrote is read again


def parent_of(me: int) -> int:
    """The parent of a rank other than 0."""
    place = 1
    while me // place % BASE == 0:
        place *= BASE
    return me - me // place % BASE * place


def depth_of(me: int) -> int:
    """The steps from a rank to rank 0."""
    return 0 if me == 0 else 1 + depth_of(parent_of(me))


def children_of(me: int, size: int) -> list[int]:
    """The children of a rank among `size` ranks, ascending."""
    found, place = list[int](), 1
    while place < size and me // place % BASE == 0:
        steps = range(me + place, me + BASE * place, place)
        found += [each for each in steps if each < size]
        place *= BASE
    return found


class Said(NamedTuple):
    """What ranks of a subtree said that should be the same.

    text, rank: of the root of the subtree. other, other_text: of the lowest rank known
    to have said something else; -1 and "" if there is none.
    """

    text: str
    rank: int
    other: int = -1
    other_text: str = ""

    def with_child(self, child: Said) -> Said:
        """The same of this subtree and that of a child."""
        if child.text != self.text:
            found = child.rank, child.text
        else:
            found = child.other, child.other_text
        if found[0] < 0 or 0 <= self.other < found[0]:
            return self
        return self._replace(other=found[0], other_text=found[1])


class AbsentRankError(RuntimeError):
    """A rank that did not come. place: its place among those that combine values."""

    def __init__(self, place: int) -> None:
        super().__init__(f"rank {place} did not come")
        self.place = place


class StoreTree:
    """Values that `size` ranks combine once, as JSON in the store.

    name: of the keys, of this use alone. me: the place of this rank.
    limit: seconds that a rank waits for one that has not come.

    A key is deleted by the rank that reads it, so none remains.
    """

    def __init__(self, store: Any, name: str, me: int, size: int, limit: float) -> None:
        self.store, self.name, self.limit = store, name, limit
        self.me, self.children = me, children_of(me, size)

    def combined(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """The values of all ranks, combined with those of children, on every rank.

        Raises `AbsentRankError` on all ranks that are here, if one does not come.
        """
        return self.down(self.up(value, combine))

    def up(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """What is known of the subtree of this rank, which is sent to its parent."""
        absent, begin = -1, time.monotonic()
        if self.me and self.children:
            self._put(f"here {self.me}", "")
        for child in self.children:
            try:
                absent, theirs = self._from_child(child, begin + self.limit)
            except AbsentRankError as error:
                absent = error.place
            if absent >= 0:
                break
            value = combine(value, theirs)
        if self.me:
            self._put(f"up {self.me}", [absent, value])
            if self.children:
                self.store.delete_key(self._key(f"here {self.me}"))
        return [absent, value]

    def down(self, found: Any) -> Any:
        """What rank 0 has found, on every rank. found: what `up` gave."""
        if self.me:
            # a parent that waits in vain for its own parent says so before
            patience = 2 * self.limit + 5 + depth_of(self.me)
            try:
                found = self._take(f"down {self.me}", time.monotonic() + patience)
            except dist.DistStoreError:
                found = [parent_of(self.me), None]
        for child in self.children:
            self._put(f"down {child}", found)
        absent, value = found
        if absent >= 0:
            raise AbsentRankError(absent)
        return value

    def _from_child(self, child: int, end: float) -> Any:
        while True:
            try:
                return self._take(f"up {child}", end)
            except dist.DistStoreError as error:
                if not self.store.check([self._key(f"here {child}")]):
                    raise AbsentRankError(child) from error
            end += self.limit / 4  # it is here, and waits for its own children

    def _key(self, what: str) -> str:
        return f"{self.name}/{what}"

    def _put(self, what: str, value: Any) -> None:
        key = self._key(what)
        self.store.set(key, sealed(key, json.dumps(value)))

    def _take(self, what: str, end: float) -> Any:
        """A value, which is deleted. One that no rank wrote is not believed."""
        key = self._key(what)
        while True:
            left = datetime.timedelta(seconds=max(0.1, end - time.monotonic()))
            self.store.wait([key], left)
            text = unsealed(key, self.store.get(key))
            if text is not None:
                self.store.delete_key(key)
                return json.loads(text)
            time.sleep(FORGED)
            if time.monotonic() > end:
                raise dist.DistStoreError(f"no rank of this job wrote {key}")
