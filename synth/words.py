"""Received words: what every process gets that it did not own, exactly, for all processes at once.

A process receives, per tensor,
    read      Σ over tile visits (words of the tile - words it carries itself), and once, before, the
              halo: words it carries for its group but does not own; nothing if the tensor was kept;
    written   (g - 1) partial sums for each word it carries, per visit, where g processes share the slice;
              and once, after, the halo: sums for its words that neighbours carry.
All boxes are products of intervals, so the counts are products of per-dimension counts; they are computed
as arrays over the process grid. The simulator and the running programs count the same words one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.axes import AXES, DIMS, LACKS, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.distribution import Distribution
from synth.nest import Window
from synth.shares import member_parts
from synth.tiling import Tiling

Array = NDArray[Any]  # int64, or Python ints where 64 bits are not enough
Spans = tuple[Array, Array]  # lows and highs of many intervals


@dataclass(frozen=True)
class Received:
    """Words received by each process: arrays over the process grid, axes in the order of `AXES`."""

    by_tensor: dict[Tensor, Array]
    halo: Array  # the part of In that neighbours send

    @property
    def total(self) -> Array:
        """All tensors together."""
        return self.by_tensor["In"] + self.by_tensor["Ker"] + self.by_tensor["Out"]

    def __add__(self, other: Received) -> Received:
        """Words over two passes."""
        both = {t: self.by_tensor[t] + other.by_tensor[t] for t in TENSORS}
        return Received(both, self.halo + other.halo)

    def most(self) -> dict[str, int]:
        """The most words any one process receives: per tensor, as halo, and in total."""
        most = {t.lower(): int(self.by_tensor[t].max()) for t in TENSORS}
        return {**most, "halo": int(self.halo.max()), "total": int(self.total.max())}

    def at(self, at: PerAxis) -> dict[str, int]:
        """The same for one process."""
        words = {t.lower(): int(self.by_tensor[t][tuple(at)]) for t in TENSORS}
        return {**words, "halo": int(self.halo[tuple(at)]), "total": int(self.total[tuple(at)])}


def received(distribution: Distribution, tiling: Tiling) -> Received:
    """Words that each process receives in the pass of a tiling."""
    counter = _Counter(distribution, tiling)
    inputs, halo = counter.inputs()
    full = tuple(distribution.grid)
    by_tensor: dict[Tensor, Array] = {
        "In": np.broadcast_to(inputs, full),
        "Ker": np.broadcast_to(counter.flat("Ker"), full),
        "Out": np.broadcast_to(counter.flat("Out"), full),
    }
    return Received(by_tensor, np.broadcast_to(halo, full))


class _Counter:
    """Per-dimension interval arithmetic over the whole grid. Arrays broadcast to the grid's shape."""

    def __init__(self, distribution: Distribution, tiling: Tiling) -> None:
        self.distribution, self.tiling, self.grid = distribution, tiling, distribution.grid
        nest = distribution.nest
        self.nest = nest
        most = max(nest.words.values()) * self.grid.size * tiling.steps
        self.integer: Any = np.int64 if most < 2**61 else object

    def index(self, axis: str) -> Array:
        """Coordinate along a grid axis (0 where the dimension is not a grid axis)."""
        if axis not in AXES:
            return self._at_axis(np.zeros(1, dtype=self.integer), 0)
        position = AXES.index(axis)
        return self._at_axis(np.arange(self.grid[position]).astype(self.integer), position)

    @staticmethod
    def _at_axis(values: Array, position: int) -> Array:
        return values.reshape([-1 if i == position else 1 for i in range(len(AXES))])

    def owned(self, tensor: Tensor, dim: str) -> tuple[Spans, Spans]:
        """The group's and the process's own interval along one dimension."""
        size = dict(zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))[dim]
        whole = (self.index("") + 0, self.index("") + size)
        line = _cut(whole, getattr(self.grid, dim, 1), self.index(dim))
        return line, _cut(line, *self._part(tensor, dim))

    def _part(self, tensor: Tensor, dim: str) -> tuple[int, Any]:
        member: Any = self.index("")
        for axis in LACKS[tensor]:
            member = member * getattr(self.grid, axis) + self.index(axis)
        return member_parts(self.distribution.shares[tensor], member).get(dim, (1, self.index("")))

    def flat(self, tensor: Tensor) -> Array:
        """Words of Ker or Out, which have no halo."""
        if tensor == self.tiling.written:
            partners = self.distribution.group_size(tensor) - 1
            return self.share_words(tensor) * partners * self.tiling.loads(tensor)
        if tensor in self.tiling.kept:
            return self._product([0])
        return (self.slice_words(tensor) - self.share_words(tensor)) * self.tiling.loads(tensor)

    def slice_words(self, tensor: Tensor) -> Array:
        """Words of the slice that the group shares (Ker and Out)."""
        return self._product(_len(self.owned(tensor, dim)[0]) for dim in DIMS[tensor])

    def share_words(self, tensor: Tensor) -> Array:
        """Words that the process owns."""
        return self._product(_len(self.owned(tensor, dim)[1]) for dim in DIMS[tensor])

    def _product(self, factors: Any) -> Array:
        words: Array = self.index("") + 1
        for factor in factors:
            words = words * factor
        return words

    def inputs(self) -> tuple[Array, Array]:
        """Words of In received in all, and as halo."""
        if "In" in self.tiling.kept:
            return self._product([0]), self._product([0])
        visited, mine, carried, kept, wanted = (self.index("") + 1 for _ in range(5))
        for dim in DIMS["In"]:
            _, own = self.owned("In", dim)
            if dim not in SPATIAL:
                words = _len(own)
                line = _len(self.owned("In", dim)[0])
                visited, mine = visited * line, mine * words
                carried, kept, wanted = carried * words, kept * words, wanted * words
                continue
            window = self.nest.windows[dim]
            tiles = list(self._reaches(dim, window))
            carry = self._carried(dim, own, self._reach(window, self._work(dim)))
            visited = visited * sum(_len(tile) for tile in tiles)
            mine = mine * sum(_len(_meet(tile, carry)) for tile in tiles)
            carried = carried * _len(carry)
            kept = kept * _len(_meet(carry, own))
            if self.tiling.written == "In":
                wanted = wanted * self._wanted(dim, window, own)
        if self.tiling.written == "In":
            partners = self.distribution.group_size("In") - 1
            sums = mine * partners * self.tiling.loads("In")
            return sums + wanted - kept, wanted - kept
        halo = carried - kept
        gathered = (visited - mine) * self.tiling.loads("In")
        return gathered + halo, halo

    def _wanted(self, dim: Axis, window: Window, own: Spans) -> Array:
        """Rows of the own interval, counted once for every block along the dimension that reads them."""
        extent, parts = getattr(self.nest.extents, dim), getattr(self.grid, dim)
        whole = (self.index("") + 0, self.index("") + extent)
        reaches = (self._reach(window, _cut(whole, parts, self.index("") + i)) for i in range(parts))
        rows: Array = sum((_len(_meet(reach, own)) for reach in reaches), start=self.index("") + 0)
        return rows

    def _work(self, axis: Axis) -> Spans:
        extent = getattr(self.nest.extents, axis)
        return _cut((self.index("") + 0, self.index("") + extent), getattr(self.grid, axis), self.index(axis))

    def _reaches(self, dim: Axis, window: Window) -> Any:
        count = 1 if self.tiling.whole("In") else getattr(self.tiling.counts, dim)
        work = self._work(dim)
        return (self._reach(window, _cut(work, count, self.index("") + i)) for i in range(count))

    def _reach(self, window: Window, block: Spans) -> Spans:
        low, high = block
        first = np.maximum(0, window.stride * low - window.padding)
        tail = window.dilation * (window.kernel - 1) + 1 - window.padding
        last = np.minimum(window.size, window.stride * (high - 1) + tail)
        empty = (high <= low) | (last <= first)
        return np.where(empty, 0, first), np.where(empty, 0, last)

    def _carried(self, dim: str, own: Spans, need: Spans) -> Spans:
        count, part = self._part("In", dim)
        low = np.where(part == 0, need[0], own[0])
        high = np.where(part == count - 1, need[1], own[1])
        return _meet((low, np.maximum(low, high)), need)


def _cut(whole: Spans, parts: int, index: Any) -> Spans:
    low, high = whole
    size, longer = (high - low) // parts, (high - low) % parts
    start = low + index * size + np.minimum(index, longer)
    return start, start + size + (index < longer)


def _meet(one: Spans, other: Spans) -> Spans:
    low = np.maximum(one[0], other[0])
    return low, np.maximum(low, np.minimum(one[1], other[1]))


def _len(spans: Spans) -> Array:
    return spans[1] - spans[0]
