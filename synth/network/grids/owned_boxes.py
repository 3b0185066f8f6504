"""Owned boxes of many grids at once, as arrays: words of a layer, and the boxes of a redistribution.

`Distribution` gives the box that one rank of one grid owns. This module takes the same cuts as arrays over
(grid, rank), so that the planner can price thousands of pairs of grids. `redistribution` intersects them.

Dimensions of a box: b, channel (all groups, flat), d, h, w, in the user's coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, DIMS, LACKS, ROW_MAJOR, Axis, Order, PerAxis, Tensor, strides
from synth.layer.interval_arrays import Spans, covered, cut, lengths, meet, widened
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, gathers
from synth.network.grids.box_rows import FLAT, BoxRows, distinct
from synth.network.grids.row_bank import Cut, RowBank, radix
from synth.schedule.distribution import Distribution
from synth.schedule.reread_rows import reached, visited

Array = NDArray[Any]
FRAMED: tuple[Tensor, ...] = ("In", "Out")  # tensors that may have a halo
MAX_EXACT_RANKS = 1 << 15  # up to this many, maxima are taken over all ranks; above, over a fixed sample
SAMPLE = 8190


@cache
def sampled_ranks(procs: int) -> Array:
    """The ranks over which maxima are taken: all of them, or the same random sample every time."""
    if procs <= MAX_EXACT_RANKS:
        return np.arange(procs, dtype=np.int32)
    drawn = np.random.default_rng(procs).integers(0, procs, SAMPLE)
    return distinct(np.concatenate([[0, procs - 1], drawn])).astype(np.int32)


@dataclass(frozen=True)
class PlacedGrid:
    """A process grid, the order in which its axes run over the ranks, and the turned axes of the nest.

    Turned axes, along which blocks are cut by input rows, change the words of the layer only: owned boxes,
    and so redistributions, are the same.
    """

    grid: PerAxis
    order: Order = ROW_MAJOR
    turned: tuple[Axis, ...] = ()


class GridDistributions(dict[PerAxis, Distribution]):
    """The distributions of the grids of one nest, each made when it is first asked for."""

    def __init__(self, nest: Nest, resident: frozenset[Tensor] = frozenset()) -> None:
        self.nest, self.resident = nest, resident

    def __missing__(self, grid: PerAxis) -> Distribution:
        made = self[grid] = Distribution(self.nest, grid, resident=self.resident)
        return made


class OwnedBoxes:
    """Boxes of several placed grids of one nest over `procs` ranks. All arrays are (grid, rank).

    resident: tensors of which every rank owns its whole slice; see `Distribution`.
    distributions: those of the grids, if they are known; then `resident` has no effect.
    ranks: per grid, the ranks to look at; None for `sampled_ranks`.
    """

    def __init__(
        self,
        nest: Nest,
        placed: Sequence[PlacedGrid],
        procs: int,
        resident: frozenset[Tensor] = frozenset(),
        distributions: Sequence[Distribution] | None = None,
        ranks: Array | None = None,
    ) -> None:
        self.nest, self.placed, self.procs = nest, list(placed), procs
        self.distributions = list(
            distributions or (Distribution(nest, each.grid, resident=resident) for each in placed)
        )
        self._integer: Any = np.int32 if max(max(nest.shapes.values())) < 2**31 else np.int64
        self._slices: dict[tuple[str, str], Spans] = {}
        self._owned: dict[tuple[str, str], Spans] = {}
        self._members: dict[str, Array] = {}
        self._read: dict[str, Spans] = {}
        self._needed: dict[Tensor, tuple[Array, Array]] = {}
        self._summed: dict[Tensor, tuple[Array, Array]] = {}
        self._rows: dict[Tensor, BoxRows] = {}
        self._shards: dict[Tensor, dict[str, Array]] = {}
        self._coordinates: dict[str, Array] = {}
        grids = np.array([each.grid for each in placed], np.int32)
        steps = strides_of(grids, [each.order for each in placed])
        self.parts: dict[str, Array] = {axis: grids[:, i : i + 1] for i, axis in enumerate(AXES)}
        self._steps: dict[str, Array] = {axis: steps[:, i : i + 1] for i, axis in enumerate(AXES)}
        self._sizes: Array = grids.prod(axis=1, dtype=np.int64)[:, None]
        self.ranks = sampled_ranks(procs)[None, :] if ranks is None else ranks

    @cached_property
    def idle(self) -> Array:
        """Whether a rank is beyond its grid."""
        beyond: Array = self.ranks >= self._sizes
        return beyond

    def _at(self, axis: str) -> Array:
        """The grid coordinates of the ranks along an axis."""
        if axis not in self._coordinates:
            if self.parts[axis].max() == 1:
                self._coordinates[axis] = np.zeros((1, 1), dtype=np.int32)
            else:
                self._coordinates[axis] = self.ranks // self._steps[axis] % self.parts[axis]
        return self._coordinates[axis]

    def _slice(self, tensor: Tensor, dim: str) -> Spans:
        """The interval of a dimension that the group of each rank shares."""
        if (tensor, dim) not in self._slices:
            size = dict(zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))[dim]
            whole = np.zeros((1, 1), dtype=self._integer), np.full((1, 1), size, dtype=self._integer)
            split = dim in AXES and self.parts[dim].max() > 1
            part = cut(whole, self.parts[dim], self._at(dim)) if split else whole
            self._slices[tensor, dim] = part
        return self._slices[tensor, dim]

    def _member(self, tensor: Tensor) -> Array:
        """The position of each rank within its group."""
        if tensor not in self._members:
            member = np.zeros((1, 1), dtype=np.int32)
            for axis in LACKS[tensor]:
                if self.parts[axis].max() > 1:
                    member = member * self.parts[axis] + self._at(axis)
            self._members[tensor] = member
        return self._members[tensor]

    def owned(self, tensor: Tensor) -> dict[str, Spans]:
        """Dimension -> the interval of the shard that each rank alone owns."""
        return {dim: self._owned_along(tensor, dim) for dim in DIMS[tensor]}

    def _owned_along(self, tensor: Tensor, dim: str) -> Spans:
        if (tensor, dim) not in self._owned:
            whole = self._slice(tensor, dim)
            parts, step = self._shard_parts(tensor, dim)
            split = parts.max() > 1
            part = cut(whole, parts, self._member(tensor) // step % parts) if split else whole
            self._owned[tensor, dim] = part
        return self._owned[tensor, dim]

    def _shard_parts(self, tensor: Tensor, dim: str) -> tuple[Array, Array]:
        """Per grid: shards of a slice along a dimension, and members between two of them."""
        if tensor not in self._shards:
            found: dict[str, Array] = {}
            for at, each in enumerate(self.distributions):
                for cut_dim, cut_ in radix(each.shard_cuts[tensor]).items():
                    if cut_dim not in found:
                        found[cut_dim] = np.ones((len(self.placed), 2), np.int32)
                    found[cut_dim][at] = cut_
            self._shards[tensor] = found
        cuts = self._shards[tensor].get(dim, np.ones((1, 2), np.int32))
        return cuts[:, :1], cuts[:, 1:]

    # -- words of the layer --------------------------------------------------------------------------

    def needed(self, tensor: Tensor) -> tuple[Array, Array]:
        """Words of a tensor that a block touches, and words that it touches and the rank owns."""
        if tensor not in self._needed:
            self._needed[tensor] = self._needed_words(tensor)
        return self._needed[tensor]

    def summed(self, tensor: Tensor) -> tuple[Array, Array]:
        """Words of sums that a rank adds for its group, and owned words, once per block that adds to them."""
        if tensor not in self._summed:
            self._summed[tensor] = self._summed_words(tensor)
        return self._summed[tensor]

    def _needed_words(self, tensor: Tensor) -> tuple[Array, Array]:
        needed = own_needed = np.ones((1, 1), dtype=np.int64)
        own = self.owned(tensor)
        for dim in DIMS[tensor]:
            if dim not in self.nest.framed(tensor):
                needed, own_needed = (
                    needed * lengths(self._slice(tensor, dim)),
                    own_needed * lengths(own[dim]),
                )
                continue
            read = self._rows_read(dim)
            needed, own_needed = needed * lengths(read), own_needed * lengths(meet(read, own[dim]))
        return needed, own_needed

    def _summed_words(self, tensor: Tensor) -> tuple[Array, Array]:
        carried = received = np.ones((1, 1), dtype=np.int64)
        own, member = self.owned(tensor), self._member(tensor)
        for dim in DIMS[tensor]:
            if dim not in self.nest.framed(tensor):
                carried, received = carried * lengths(own[dim]), received * lengths(own[dim])
                continue
            parts, step = self._shard_parts(tensor, dim)
            box = widened(own[dim], self._rows_read(dim), parts, member // step % parts)
            carried = carried * lengths(box)
            received = received * self._rows_added(dim, own[dim])
        return carried, received

    def _rows_added(self, dim: Axis, own: Spans) -> Array:
        """Rows of an interval, each counted once for every block that reads it."""
        window, extent = self.nest.windows[dim], getattr(self.nest.extents, dim)
        if window.divisor == 1:
            every = np.zeros((1, 1), np.int64), np.full((1, 1), extent, np.int64)
            return visited(window, every, self.parts[dim].astype(np.int64), own)
        shape = np.broadcast_shapes(own[0].shape, (len(self.placed), 1))
        low, high = (np.broadcast_to(bound, shape) for bound in own)
        rows = np.empty(shape, dtype=np.int64)
        for count in set(self.parts[dim][:, 0].tolist()):
            some = self.parts[dim][:, 0] == count
            read = reached(window, cut((0, extent), count, np.arange(count)))
            rows[some] = covered(read, (low[some], high[some]))
        return rows

    def _rows_read(self, dim: Axis) -> Spans:
        """The rows of the framed tensor that the block of each rank touches."""
        if dim not in self._read:
            block = cut((0, getattr(self.nest.extents, dim)), self.parts[dim], self._at(dim))
            self._read[dim] = reached(self.nest.windows[dim], block)
        return self._read[dim]

    def words(
        self, passes: Passes, weighted: bool, saves: frozenset[Tensor] = frozenset({"Out"})
    ) -> tuple[Array, dict[str, Array]]:
        """(received words of the most-receiving rank, the same per tensor), one number per grid.

        The passes save what they gather of the tensors in `saves`, as `passes.gathers` says. A layer
        without weights (pooling) neither gathers a kernel nor reduces its gradient.
        """
        group = {t: self._group_sizes(t) for t in LACKS}
        gathered: dict[Tensor, Array] = {}
        summed: dict[Tensor, Array] = {}
        written = {WRITES[pass_] for pass_ in passes}
        for tensor in FRAMED:
            needed, own_needed = self.needed(tensor)
            carried, added = self.summed(tensor) if tensor in written else (needed, needed)
            gathered[tensor] = needed - own_needed
            summed[tensor] = carried * (group[tensor] - 1) + added - own_needed
        ker = _volume(self.owned("Ker"))
        gathered["Ker"] = (self._slice_words("Ker") - ker) * weighted
        summed["Ker"] = ker * (group["Ker"] - 1) * weighted
        moved = {}
        for tensor, times in gathers(passes, saves).items():
            sums = sum(WRITES[pass_] == tensor for pass_ in passes)
            words = times * gathered[tensor] + sums * summed[tensor]
            moved[tensor.lower()] = np.where(self.idle, 0, words)
        total = moved["in"] + moved["ker"] + moved["out"]
        return total.max(axis=1), {name: words.max(axis=1) for name, words in moved.items()}

    def _slice_words(self, tensor: Tensor) -> Array:
        words = np.ones((1, 1), dtype=np.int64)
        for dim in DIMS[tensor]:
            words = words * lengths(self._slice(tensor, dim))
        return words

    def _group_sizes(self, tensor: Tensor) -> Array:
        sizes: Array = np.ones((1, 1), np.int64)
        for axis in self.distributions[0].lacked(tensor):
            sizes = sizes * self.parts[axis]
        return sizes

    # -- boxes in the user's coordinates ---------------------------------------------------------------

    def flat(self, tensor: Tensor) -> tuple[Array, Array, Array]:
        """(lows, highs) as (dimension of `FLAT`, grid, rank), and per grid whether these boxes are exact.

        The channels of a grouped tensor are one interval only if a rank owns whole groups, or a part of one.
        """
        shape = (len(self.placed), self.idle.shape[1])
        low, high = (
            np.stack([np.broadcast_to(bound, shape) for bound in bounds])
            for bounds in zip(*(self._flat_along(tensor, dim) for dim in FLAT), strict=True)
        )
        group, channel = self._owned_along(tensor, "g"), self._owned_along(tensor, _inner(tensor))
        exact: Array = (lengths(channel) == self._width(tensor)) | (lengths(group) <= 1)
        return low, high, np.asarray(np.broadcast_to(exact, shape).all(axis=1))

    def rows(self, tensor: Tensor) -> BoxRows:
        """The boxes of `flat`, in rows that grids share."""
        if tensor not in self._rows:
            bank = RowBank(sampled_ranks(self.procs))
            numbers = row_numbers(bank, self.nest, tensor, self.placed, self.distributions)
            self._rows[tensor] = bank.boxes(numbers)
        return self._rows[tensor]

    def _flat_along(self, tensor: Tensor, flat: str) -> Spans:
        """The bounds of all ranks along a dimension of `FLAT`."""
        low, high = self.channels(tensor) if flat == "channel" else self._owned_along(tensor, flat)
        shape = (len(self.placed), self.idle.shape[1])
        low, high = (np.broadcast_to(bound, shape).astype(np.int32) for bound in (low, high))
        if flat == "b":
            high[self.idle] = low[self.idle]
        return low, high

    def channels(self, tensor: Tensor) -> Spans:
        """The channels of all groups, as one interval; see `flat`."""
        group, channel = self._owned_along(tensor, "g"), self._owned_along(tensor, _inner(tensor))
        width = self._width(tensor)
        low = group[0] * width + channel[0]
        high = np.where(lengths(group) <= 1, group[0] * width + channel[1], group[1] * width)
        return low, np.where(lengths(group) == 0, low, high)

    def _width(self, tensor: Tensor) -> int:
        """Channels of a group."""
        width: int = getattr(self.nest.extents, _inner(tensor))
        return width


def strides_of(grids: Array, orders: Sequence[Order]) -> Array:
    """`axes.strides` of several grids, by (grid, axis)."""
    place = np.array([[AXES.index(axis) for axis in order] for order in orders])
    parts = np.take_along_axis(grids, place, axis=1)[:, :0:-1]
    steps = np.ones_like(grids)
    ordered = np.concatenate([steps[:, :1], np.cumprod(parts, axis=1, dtype=np.int32)], axis=1)[:, ::-1]
    np.put_along_axis(steps, place, ordered, axis=1)
    return steps


def _inner(tensor: Tensor) -> Axis:
    return "c" if tensor == "In" else "k"


def _volume(spans: dict[str, Spans]) -> Array:
    volume = np.ones((1, 1), dtype=np.int64)
    for span in spans.values():
        volume = volume * lengths(span)
    return volume


def row_numbers(
    bank: RowBank,
    nest: Nest,
    tensor: Tensor,
    placed: Sequence[PlacedGrid],
    distributions: Sequence[Distribution] | None = None,
) -> Array:
    """The numbers of the rows that placed grids own of a tensor, by (grid, dimension of `FLAT`)."""
    owners = distributions or [Distribution(nest, each.grid) for each in placed]
    some = []
    for each, owner in zip(placed, owners, strict=True):
        steps = strides(each.grid, each.order)
        parts_of = zip(AXES, each.grid, strict=True)
        cuts: dict[Axis, Cut] = {axis: (parts, steps[axis]) for axis, parts in parts_of if parts > 1}
        some.append((cuts, each.grid.size, owner.shard_cuts[tensor]))
    return bank.numbers(nest, tensor, some)
