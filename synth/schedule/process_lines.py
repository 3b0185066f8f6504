"""Lengths of what each process works on, needs and owns, along every dimension: arrays over the process grid.

`volume` multiplies them. What several pass plans of a distribution ask for is computed once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, DIMS, Axis, Tensor
from synth.layer.interval_arrays import Spans, covered, cut, lengths, meet, widened
from synth.schedule.distribution import Distribution
from synth.schedule.reread_rows import reached, visited
from synth.schedule.shard_cuts import member_parts

Array = NDArray[Any]  # int64, or Python ints where 64 bits are not enough
Factors = dict[str, list[Array]]  # what is counted -> its lengths along the dimensions of a tensor

EVERY = 4096  # processes up to which every one is a class of its own


class Lines:
    """Blocks, slices and shards along every dimension, over the grid: equal for all pass plans.

    Lengths and products that several pass plans ask for are computed once.
    """

    def __init__(self, distribution: Distribution) -> None:
        self.distribution, self.nest, self.grid = distribution, distribution.nest, distribution.grid
        self.wide = max(self.nest.words.values()) * self.grid.size >= 2**61  # products of lengths
        self._owned: dict[tuple[Tensor, str], tuple[Spans, Spans]] = {}
        self._parts: dict[Tensor, dict[str, tuple[int, Any]]] = {}
        self._rows: dict[tuple[Tensor, str, str, int], Array] = {}
        self._products: dict[tuple[Tensor, str, tuple[str, ...]], Array] = {}

    @cached_property
    def every(self) -> tuple[Array, ...] | None:
        """Per axis: the coordinates, where every process is a class of its own; None on a large grid."""
        return tuple(map(np.arange, self.grid)) if self.grid.size <= EVERY else None

    @cached_property
    def classes(self) -> tuple[Array, ...]:
        """Per axis: coordinate -> class of the processes by their lengths of Ker and Out."""
        flat: Factors = {
            f"{tensor} {name}": [self.length(tensor, name, dim) for dim in DIMS[tensor]]
            for tensor in ("Ker", "Out")
            for name in ("slice", "shard")
        }
        return tuple(alike(parts, axis, flat) for axis, parts in enumerate(self.grid))

    def index(self, axis: str) -> Array:
        """Coordinate along a grid axis (0 where the dimension is not a grid axis)."""
        along = np.arange(getattr(self.grid, axis, 1), dtype=np.int64)
        return along.reshape([-1 if each == axis else 1 for each in AXES])

    def owned(self, tensor: Tensor, dim: str) -> tuple[Spans, Spans]:
        """The group's and the process's own interval along one dimension."""
        if (tensor, dim) not in self._owned:
            size = dict(zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))[dim]
            line = cut(self.whole(size), getattr(self.grid, dim, 1), self.index(dim))
            self._owned[tensor, dim] = line, cut(line, *self.part(tensor, dim))
        return self._owned[tensor, dim]

    def whole(self, size: int) -> Spans:
        """The interval [0, size), for all processes."""
        zero = self.index("")
        return zero, zero + size

    def part(self, tensor: Tensor, dim: str) -> tuple[int, Any]:
        """Shares of a slice along one dimension, and which of them each process owns."""
        if tensor not in self._parts:
            member: Any = self.index("")
            for axis in self.distribution.lacked(tensor):
                member = member * getattr(self.grid, axis) + self.index(axis)
            self._parts[tensor] = member_parts(self.distribution.shard_cuts[tensor], member)
        return self._parts[tensor].get(dim, (1, self.index("")))

    def work(self, axis: Axis) -> Spans:
        """The blocks along an axis."""
        extent = getattr(self.nest.extents, axis)
        return cut(self.whole(extent), getattr(self.grid, axis), self.index(axis))

    def length(self, tensor: Tensor, name: str, dim: str, tiles: int = 1) -> Array:
        """Lengths of a box along a dimension of a tensor.

        slice, shard: what the group owns, and what the process owns. The others are of a tensor with a
        halo. visited: rows that tiles read, counted per tile. mine: of those, rows that the process carries
        itself. carried: rows that it carries. owned: rows among them that it owns. wanted: rows that it owns,
        counted once for each block that reads them (for a pass that writes the tensor).
        """
        if dim not in self.nest.framed(tensor) or name in ("slice", "shard"):
            name, tiles = "slice" if name in ("slice", "visited") else "shard", 1
        key = tensor, name, dim, tiles
        if key not in self._rows:
            self._rows[key] = self._counted(*key)
        return self._rows[key]

    def _counted(self, tensor: Tensor, name: str, dim: str, tiles: int) -> Array:
        if name in ("slice", "shard"):
            line, own = self.owned(tensor, dim)
            return lengths(line if name == "slice" else own)
        return self._framed_rows(tensor, name, cast(Axis, dim), tiles)

    def _framed_rows(self, tensor: Tensor, name: str, dim: Axis, tiles: int) -> Array:
        window, block = self.nest.windows[dim], self.work(dim)
        if name == "visited":
            return visited(window, block, tiles, self.whole(window.size))
        _, own = self.owned(tensor, dim)
        if name == "wanted":
            low, high = reached(window, block)
            return covered((low.ravel(), high.ravel()), own)
        carry = widened(own, reached(window, block), *self.part(tensor, dim))
        if name == "mine":
            return visited(window, block, tiles, carry)
        return lengths(carry if name == "carried" else meet(carry, own))

    def product(self, tensor: Tensor, name: str, without: tuple[Axis, ...] = ()) -> Array:
        """Words of a box of every process: the product of its lengths, those along some axes left out."""
        if (tensor, name, without) not in self._products:
            words: Array = np.ones([1] * len(AXES), object if self.wide else np.int64)
            for dim in DIMS[tensor]:
                words = words if dim in without else words * self.length(tensor, name, dim)
            self._products[tensor, name, without] = words
        return self._products[tensor, name, without]


@lru_cache(maxsize=2)
def lines_of(distribution: Distribution) -> Lines:
    """The lines of a distribution."""
    return Lines(distribution)


def alike(parts: int, axis: int, factors: Factors, classes: Array | None = None) -> Array:
    """Classes of the coordinates along an axis: equal in `classes` and in all lengths."""
    columns = [
        np.moveaxis(each, axis, 0).reshape(parts, -1)
        for lines in factors.values()
        for each in lines
        if each.shape[axis] > 1
    ]
    first = np.zeros(parts, np.int64) if classes is None else classes
    columns.insert(0, first.reshape(parts, 1))
    differs = np.ones(parts, bool)  # from the coordinate before: the first of a run of equal rows
    differs[1:] = np.any([(each[1:] != each[:-1]).any(axis=1) for each in columns], axis=0)
    starts = np.flatnonzero(differs)
    numbers: dict[bytes, int] = {}
    table = np.concatenate([each[starts] for each in columns], axis=1)
    runs = [numbers.setdefault(row.tobytes(), len(numbers)) for row in table]
    return np.repeat(np.array(runs, np.int64), np.diff(np.append(starts, parts)))
