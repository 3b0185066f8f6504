"""Boxes of the options of a layer, in rows that options share.

A row has the bounds of all ranks along one dimension. Many options cut a dimension alike, so a dimension has
few different rows. What is computed per row costs far less than what is computed per option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.interval_arrays import Spans

Array = NDArray[Any]
FLAT = ("b", "channel", "d", "h", "w")  # the dimensions of a box: channels of all groups are one


@dataclass(frozen=True)
class BoxRows:
    """Boxes by (option, rank), with one entry per dimension of `FLAT`.

    low, high: the bounds, by (row, rank). row: option -> its row.
    """

    low: tuple[Array, ...]
    high: tuple[Array, ...]
    row: tuple[Array, ...]

    @classmethod
    def of(cls, boxes: Spans) -> BoxRows:
        """Boxes that are given as (lows, highs), each by (dimension, option, rank)."""
        lows, highs, rows = [], [], []
        for low, high in zip(*boxes, strict=True):
            first, row = first_of_kinds([each.tobytes() for each in np.concatenate([low, high], axis=1)])
            lows.append(low[first])
            highs.append(high[first])
            rows.append(row)
        return cls(tuple(lows), tuple(highs), tuple(rows))

    @cached_property
    def spans(self) -> Spans:
        """(lows, highs), each by (dimension, option, rank)."""
        low, high = (
            np.stack([bound[row] for bound, row in zip(bounds, self.row, strict=True)])
            for bounds in (self.low, self.high)
        )
        return low, high

    @cached_property
    def volumes(self) -> Array:
        """Words by (option, rank)."""
        largest = math.prod(int(high.max()) for high in self.high)
        volume: Array = np.ones(1, np.int32 if largest < 2**31 else np.int64)
        for low, high, row in zip(self.low, self.high, self.row, strict=True):
            rows = np.maximum(high - low, 0)
            volume = volume * (rows if len(rows) == 1 else rows[row])
        return np.broadcast_to(volume, (len(self.row[0]), self.low[0].shape[1]))

    @cached_property
    def most(self) -> Array:
        """The most words of any rank, by option."""
        found: Array = self.volumes.max(axis=1)
        return found

    @cached_property
    def ranks_of_most(self) -> Array:
        """For every option the first and the last rank that have the most words."""
        most = self.volumes == self.most[:, None]
        last = most.shape[1] - 1 - most[:, ::-1].argmax(axis=1)
        return distinct(np.concatenate([most.argmax(axis=1), last]))

    def take(self, options: Sequence[int] | Array) -> BoxRows:
        """The boxes of some options."""
        used = [np.unique(row[options], return_inverse=True) for row in self.row]
        return BoxRows(
            tuple(low[kept] for low, (kept, _) in zip(self.low, used, strict=True)),
            tuple(high[kept] for high, (kept, _) in zip(self.high, used, strict=True)),
            tuple(row for _, row in used),
        )

    def along(self, at: int, change: Callable[[Array], Array]) -> BoxRows:
        """The boxes with other bounds along dimension `at`: what `change` makes of lows, and of highs."""
        low, high = list(self.low), list(self.high)
        low[at], high[at] = change(low[at]), change(high[at])
        return BoxRows(tuple(low), tuple(high), self.row)


def distinct(numbers: Array) -> Array:
    """The different numbers, ascending. Without an index, `np.unique` loads masked arrays, in 20 ms."""
    found: Array = np.unique(numbers, return_index=True)[0]
    return found


def first_of_kinds(keys: Sequence[object]) -> tuple[list[int], Array]:
    """(position of the first key of every kind, position -> its kind)."""
    kinds: dict[object, int] = {}
    first: list[int] = []
    row = np.empty(len(keys), dtype=np.intp)
    for position, key in enumerate(keys):
        if key not in kinds:
            kinds[key] = len(first)
            first.append(position)
        row[position] = kinds[key]
    return first, row
