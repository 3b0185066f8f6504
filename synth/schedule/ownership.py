"""Who owns, reads and carries what, and the words that move: of one grid or of many, as arrays.

`Distribution` says how one grid cuts a nest, and gives the boxes of one rank. Here its cuts are taken for
many ranks at once. All arrays broadcast over these ranks:

    one grid     a dimension per axis, along which what depends on the axis has an entry per coordinate
    many grids   (grid, rank)

All boxes are products of intervals, so their words are products of lengths along the dimensions of a tensor:

    slice, shard   what a group owns together, and what a rank owns alone
    visited        rows that tiles read, counted once per tile; of other dimensions the slice
    mine           of those, what the rank carries itself; here and below, of other dimensions the shard
    carried        what it carries for its group
    owned          what it carries and owns
    wanted         what it owns, counted once for every block that reads it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, DIMS, SPATIAL, Axis, Order, PerAxis, Tensor
from synth.layer.interval_arrays import Spans, covered, cut, lengths, meet, widened
from synth.layer.nest import Nest
from synth.schedule.distribution import Distribution
from synth.schedule.reread_rows import reached, visited
from synth.schedule.shard_cuts import ShardCut, radix

Array = NDArray[Any]  # int64, or Python ints where 64 bits are not enough
Shares = dict[str, tuple[Any, Any]]  # dimension -> parts of a slice, and members between two of them
Tiles = tuple[int, ...]  # of a block along d, h and w
ONE_TILE: Tiles = (1, 1, 1)


class Ownership:
    """Intervals and words of some ranks of grids of one nest.

    parts: processes along each axis. at: axis -> coordinates of the ranks. lacked: tensor -> axes along which
    the members of its group differ. shares_of: tensor -> how these cut a slice. zero: an interval's end, for
    all ranks. wide: the type of words.
    """

    def __init__(
        self,
        nest: Nest,
        parts: Any,
        at: Callable[[Axis], Array],
        lacked: Callable[[Tensor], tuple[Axis, ...]],
        shares_of: Callable[[Tensor], Shares],
        zero: Array,
        wide: Any = np.int64,
    ) -> None:
        self.nest, self.parts, self.lacked = nest, parts, lacked
        self._at, self._shares_of, self._zero = at, shares_of, zero
        self._one: Array = np.ones(zero.shape, wide)
        self._places: tuple[Array, ...] | None = None
        self._coordinates: dict[Axis, Array] = {}
        self._shares: dict[Tensor, Shares] = {}
        self._members: dict[Tensor, Array] = {}
        self._spans: dict[tuple[str, str], Spans] = {}
        self._lengths: dict[tuple[Tensor, str, str, int], Array] = {}
        self._words: dict[tuple[Tensor, str, tuple[Axis, ...]], Array] = {}

    @classmethod
    def of_grid(cls, distribution: Distribution, exact: bool = False) -> Ownership:
        """All ranks of one grid. exact: whether words may take more than 64 bits."""
        places = {
            axis: np.arange(parts).reshape([-1 if each == axis else 1 for each in AXES])
            for axis, parts in zip(AXES, distribution.grid, strict=True)
        }
        return cls(
            distribution.nest,
            distribution.grid,
            places.__getitem__,
            distribution.lacked,
            lambda tensor: radix(distribution.shard_cuts[tensor]),
            np.zeros([1] * len(AXES), np.int64),
            object if exact else np.int64,
        )

    @classmethod
    def of_grids(
        cls, distributions: Sequence[Distribution], grids: Array, orders: Sequence[Order], ranks: Array
    ) -> Ownership:
        """Some ranks of several grids. grids: by (grid, axis). ranks: by (grid or 1, rank).

        Their nests may differ in extents of axes that have no window.
        """
        parts: Any = PerAxis(*grids.T[:, :, None])
        steps = PerAxis(*strides_of(grids, orders).T[:, :, None])
        nothing = np.zeros((1, 1), np.int32)

        def at(axis: Axis) -> Array:
            count = getattr(parts, axis)
            return nothing if count.max() == 1 else ranks // getattr(steps, axis) % count

        def shares_of(tensor: Tensor) -> Shares:
            number: dict[ShardCut, int] = {}
            which = [number.setdefault(each.shard_cuts[tensor], len(number)) for each in distributions]
            found: dict[str, Array] = {}
            for shares, row in number.items():
                for dim, share in radix(shares).items():
                    found.setdefault(dim, np.ones((len(number), 2), np.int32))[row] = share
            return {dim: (table[which, :1], table[which, 1:]) for dim, table in found.items()}

        nest = side_by_side([each.nest for each in distributions])
        zero = nothing if _largest(nest) < 2**31 else nothing.astype(np.int64)
        return cls(nest, parts, at, distributions[0].lacked, shares_of, zero)

    def of_places(self, places: tuple[Array, ...]) -> Ownership:
        """The same of one grid at some coordinates along each axis."""
        some = copy(self)
        some._places, some._words = places, {}
        return some

    # -- intervals ------------------------------------------------------------------------------------

    def at(self, axis: Axis) -> Array:
        """The coordinates of the ranks along an axis."""
        if axis not in self._coordinates:
            self._coordinates[axis] = self._at(axis)
        return self._coordinates[axis]

    def member(self, tensor: Tensor) -> Array:
        """The position of each rank in the group that shares its slice of a tensor."""
        if tensor not in self._members:
            member = self._zero
            for axis in self.lacked(tensor):
                if np.max(getattr(self.parts, axis)) > 1:
                    member = member * getattr(self.parts, axis) + self.at(axis)
            self._members[tensor] = member
        return self._members[tensor]

    def group_size(self, tensor: Tensor) -> Any:
        """Ranks that share a slice of a tensor."""
        return self.parts.of(self.lacked(tensor))

    def slice(self, tensor: Tensor, dim: str) -> Spans:
        """What the group of each rank owns together along a dimension."""
        key = f"slice {tensor}", dim
        if key not in self._spans:
            size = dict(zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))[dim]
            self._spans[key] = self._block(size, dim) if dim in AXES else self._whole(size)
        return self._spans[key]

    def shard(self, tensor: Tensor, dim: str) -> Spans:
        """What each rank alone owns along a dimension."""
        key = f"shard {tensor}", dim
        if key not in self._spans:
            line, (parts, index) = self.slice(tensor, dim), self._share(tensor, dim)
            self._spans[key] = cut(line, parts, index) if np.max(parts) > 1 else line
        return self._spans[key]

    def reads(self, axis: Axis) -> Spans:
        """The rows of the framed tensor that the block of each rank reads along a spatial axis."""
        key = "reads", axis
        if key not in self._spans:
            self._spans[key] = reached(self.nest.windows[axis], self._work(axis))
        return self._spans[key]

    def carried(self, tensor: Tensor, axis: Axis) -> Spans:
        """The rows of a framed tensor that each rank carries for its group along a spatial axis."""
        key = f"carried {tensor}", axis
        if key not in self._spans:
            own, read = self.shard(tensor, axis), self.reads(axis)
            self._spans[key] = widened(own, read, *self._share(tensor, axis))
        return self._spans[key]

    def _whole(self, size: int) -> Spans:
        return self._zero, self._zero + size

    def _block(self, size: int, axis: str) -> Spans:
        parts, whole = getattr(self.parts, axis), self._whole(size)
        return cut(whole, parts, self.at(cast(Axis, axis))) if np.max(parts) > 1 else whole

    def _work(self, axis: Axis) -> Spans:
        """The block of each rank along an axis."""
        return self._block(getattr(self.nest.extents, axis), axis)

    def _share(self, tensor: Tensor, dim: str) -> tuple[Any, Any]:
        """Parts of a slice along a dimension, and which of them each rank owns."""
        if tensor not in self._shares:
            self._shares[tensor] = self._shares_of(tensor)
        if dim not in self._shares[tensor]:
            return 1, self._zero
        parts, step = self._shares[tensor][dim]
        return parts, self.member(tensor) // step % parts

    # -- lengths and words ----------------------------------------------------------------------------

    def length(self, tensor: Tensor, name: str, dim: str, tiles: int = 1) -> Array:
        """Lengths of a box along a dimension of a tensor; the names are those of the module."""
        if dim not in self.nest.framed(tensor):
            name, tiles = "slice" if name in ("slice", "visited") else "shard", 1
        key = tensor, name, dim, tiles
        if key not in self._lengths:
            self._lengths[key] = self._length(*key)
        found = self._lengths[key]
        if self._places is None:
            return found
        some = (
            place if n > 1 else np.zeros(1, np.int64)
            for place, n in zip(self._places, found.shape, strict=True)
        )
        picked: Array = found[np.ix_(*some)]
        return picked

    def _length(self, tensor: Tensor, name: str, dim: str, tiles: int) -> Array:
        own, axis = self.shard(tensor, dim), cast(Axis, dim)
        if name in ("slice", "shard"):
            return lengths(own if name == "shard" else self.slice(tensor, dim))
        if name == "owned":
            return lengths(meet(self.reads(axis), own))
        if name == "wanted":
            return self._wanted(axis, own)
        window = self.nest.windows[axis]
        if tiles == 1:
            return lengths(self.reads(axis) if name == "visited" else self.carried(tensor, axis))
        within = self._whole(window.size) if name == "visited" else self.carried(tensor, axis)
        return visited(window, self._work(axis), tiles, within)

    def _wanted(self, axis: Axis, own: Spans) -> Array:
        window, extent = self.nest.windows[axis], getattr(self.nest.extents, axis)
        counts = np.asarray(getattr(self.parts, axis), np.int64)
        if window.divisor == 1:
            every = self._zero.astype(np.int64)
            return visited(window, (every, every + extent), counts, own)
        low, high, count = np.broadcast_arrays(*own, counts)
        rows = np.empty(low.shape, np.int64)
        for parts in set(counts.ravel().tolist()):
            some, read = count == parts, reached(window, cut((0, extent), parts, np.arange(parts)))
            rows[some] = covered(read, (low[some], high[some]))
        return rows

    def words(self, tensor: Tensor, name: str, tiles: Tiles = ONE_TILE) -> Array:
        """Words of a box of every rank."""
        tiled = dict[Axis, int]()
        if name in ("visited", "mine"):
            framed = self.nest.framed(tensor)
            tiled = {a: n for a, n in zip(SPATIAL, tiles, strict=True) if n > 1 and a in framed}
        key = tensor, name, tuple(tiled)
        if key not in self._words:
            words = self._one
            for dim in DIMS[tensor]:
                words = words if dim in tiled else words * self.length(tensor, name, dim)
            self._words[key] = words
        words = self._words[key]
        for axis, count in tiled.items():
            words = words * self.length(tensor, name, axis, count)
        return words

    def fetched(self, tensor: Tensor) -> Array:
        """Words of its halo that every rank receives before a pass that reads the tensor."""
        return self.words(tensor, "carried") - self.words(tensor, "owned")

    def gathered(self, tensor: Tensor, loads: int = 1, tiles: Tiles = ONE_TILE) -> Array:
        """Words that every rank receives for a pass that reads the tensor, the halo among them.

        loads: how often each panel moves. The halo moves once.
        """
        received: Array = loads * self.words(tensor, "visited", tiles) - self.words(tensor, "owned")
        if loads == 1 and tiles == ONE_TILE:  # what it carries is a part of what it reads
            return received
        kept: Array = loads * self.words(tensor, "mine", tiles) - self.words(tensor, "carried")
        return received - kept

    def returned(self, tensor: Tensor) -> Array:
        """Words of its halo that every rank receives after a pass that writes the tensor."""
        return self.words(tensor, "wanted") - self.words(tensor, "owned")

    def summed(self, tensor: Tensor, loads: int = 1, tiles: Tiles = ONE_TILE) -> Array:
        """Words that every rank receives for a pass that writes the tensor: partial sums, and the halo."""
        partners = self.group_size(tensor) - 1
        sums: Array = self.words(tensor, "mine", tiles) * partners * loads
        return sums + self.returned(tensor) if self.nest.framed(tensor) else sums


def strides_of(grids: Array, orders: Sequence[Order]) -> Array:
    """`axes.strides` of several grids, by (grid, axis)."""
    place = np.array([[AXES.index(axis) for axis in order] for order in orders])
    parts = np.take_along_axis(grids, place, axis=1)[:, :0:-1]
    steps = np.ones_like(grids)
    ordered = np.concatenate([steps[:, :1], np.cumprod(parts, axis=1, dtype=np.int32)], axis=1)[:, ::-1]
    np.put_along_axis(steps, place, ordered, axis=1)
    return steps


def side_by_side(nests: Sequence[Nest]) -> Nest:
    """Several nests with equal windows as one, with the extents of axes that differ by (nest, 1)."""
    one = nests[0]
    if all(nest is one for nest in nests):
        return one
    extents = np.array([nest.extents for nest in nests])
    wide = extents.astype(np.int32 if extents.max() < 2**31 else np.int64)
    columns: Any = {
        axis: wide[:, at : at + 1] for at, axis in enumerate(AXES) if (extents[:, at] != extents[0, at]).any()
    }
    return replace(one, extents=one.extents._replace(**columns))


def _largest(nest: Nest) -> int:
    """The largest extent of any tensor of any of the nests that stand side by side."""
    return max(int(np.max(size)) for shape in nest.shapes.values() for size in shape)
