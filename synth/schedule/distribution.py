"""Work and ownership: rank -> intervals of the nest, and of every tensor before and after the pass.

Four boxes of a tensor matter to a process:
    needed   the slice: what the process's work block accesses (of In, the rows that its output rows read)
    owned    the shard: what the process alone stores. The shards of all processes partition the tensor
    carried  the part of the slice that the process sends to its group: its shard, for the framed tensor of
             an axis widened by the halo rows that neighbours own
    room     the box of the buffer in which the process keeps its shard: with ghost rows for the halo
The carried boxes of a group partition the slice of that group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from synth.layer.axes import (
    AXES,
    DIMS,
    LACKS,
    ROW_MAJOR,
    SPATIAL,
    TENSORS,
    Axis,
    Order,
    PerAxis,
    Tensor,
    per_axis,
    strides,
)
from synth.layer.intervals import Block, Box, Interval, cut, cuts, hull, length, volume, widen
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule.halo_rows import HaloRows, halo_rows
from synth.schedule.shard_cuts import WANTED, ShardCut, member_parts, shard_cut


@dataclass(frozen=True)
class Distribution:
    """Blocks and ownership of one nest on one process grid.

    order: how the axes run over the ranks. What the process at some coordinates owns does not depend on it.
    resident: tensors that stay where they are used. Every process owns its whole slice, several processes
        hold copies of one slice, and no pass gathers it: the weights of a network in inference.
    ghosts: whether shards live in buffers with ghost rows, so that a halo costs its rows only. In a network
        they do not: a layer copies the shard that it is given, and a copy is what it hands on.
    """

    nest: Nest
    grid: PerAxis
    order: Order = ROW_MAJOR
    resident: frozenset[Tensor] = frozenset()
    ghosts: bool = True

    @property
    def ranks(self) -> range:
        """All working ranks."""
        return range(self.grid.size)

    @cached_property
    def _steps(self) -> PerAxis:
        return per_axis(strides(self.grid, self.order).__getitem__)

    def at(self, rank: int) -> PerAxis:
        """Grid coordinates of a rank."""
        return PerAxis(*(rank // step % n for step, n in zip(self._steps, self.grid, strict=True)))

    def rank(self, at: PerAxis) -> int:
        """Rank at some grid coordinates."""
        return sum(index * step for index, step in zip(at, self._steps, strict=True))

    def work(self, at: PerAxis) -> Block:
        """Axis -> the block of the nest that the process works on."""
        n = self.nest.extents
        return {axis: cut((0, n[i]), self.grid[i], at[i]) for i, axis in enumerate(AXES)}

    @cached_property
    def most_work(self) -> PerAxis:
        """W: the largest block along each axis (the first process along each has it)."""
        return per_axis(lambda axis: -(-getattr(self.nest.extents, axis) // getattr(self.grid, axis)))

    @cached_property
    def most_real_work(self) -> int:
        """Multiply-adds on real input of the most loaded process (padding zeros are not counted)."""
        work, n, windows = self.most_work, self.nest.extents, self.nest.windows
        taps = (most_taps(windows[a], getattr(n, a), getattr(self.grid, a)) for a in SPATIAL)
        return work.b * work.g * work.c * work.k * math.prod(taps)

    @cached_property
    def load(self) -> int:
        """Iterations of the most loaded process, as the work balance counts them.

        Along a turned axis blocks have unequal numbers of pairs (row, tap), so the real pairs are counted:
        the result is in pairs divided by taps, rounded up.
        """
        if not self.nest.turned:
            return self.most_work.size
        return int(load_of(self.nest, lambda axis: most_pairs(self.nest, axis, getattr(self.grid, axis))))

    # -- groups ---------------------------------------------------------------------------------------

    def lacked(self, tensor: Tensor) -> tuple[Axis, ...]:
        """The axes along which the processes of a tensor's group differ; none for a resident tensor."""
        return () if tensor in self.resident else LACKS[tensor]

    def group_size(self, tensor: Tensor) -> int:
        """Processes that share a slice of the tensor; 1 for a resident tensor, of which each has a copy."""
        return self.grid.of(self.lacked(tensor))

    def member(self, tensor: Tensor, at: PerAxis) -> int:
        """Index of a process in the group that shares its slice of the tensor."""
        index = 0
        for axis in self.lacked(tensor):
            index = index * getattr(self.grid, axis) + getattr(at, axis)
        return index

    def group(self, tensor: Tensor, at: PerAxis) -> list[PerAxis]:
        """Coordinates of all processes that share the slice of the process at `at`, in member order."""
        line = [at]
        for axis in self.lacked(tensor):
            line = [p.with_(axis, i) for p in line for i in range(getattr(self.grid, axis))]
        return line

    @cached_property
    def shard_cuts(self) -> dict[Tensor, ShardCut]:
        """Tensor -> how a slice is cut among its group."""
        return {tensor: self.shard_cut(tensor) for tensor in TENSORS}

    def on(self, turned: Nest) -> Distribution:
        """The same of the nest with other axes turned. Who owns what does not depend on these."""
        made = replace(self, nest=turned)
        made.__dict__["shard_cuts"] = self.shard_cuts  # of a frozen class
        return made

    def shard_cut(self, tensor: Tensor) -> ShardCut:
        """How a slice is cut among its group.

        Rows of an axis that the grid cuts are left whole if possible: their halo would be one shard's.
        """
        members = self.group_size(tensor)
        if members == 1:
            return ()
        sizes = dict(zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))
        extents, whole = [], []
        for dim in WANTED[tensor]:
            size, parts = sizes[dim], getattr(self.grid, dim, 1)
            extent = dim, -(-size // parts), size // parts
            extents.append(extent)
            if parts == 1 or dim not in SPATIAL:
                whole.append(extent)
        found = shard_cut(members, tuple(whole))
        shared = dict(found)
        empty = any(smallest < shared.get(dim, 1) for dim, _, smallest in whole)
        return shard_cut(members, tuple(extents)) if empty else found

    @cached_property
    def groups(self) -> tuple[tuple[Axis, ...], ...]:
        """Per tensor, in the order of `TENSORS`: the split grid axes of its group; () if a rank is alone."""
        return tuple(tuple(a for a in self.lacked(t) if getattr(self.grid, a) > 1) for t in TENSORS)

    @cached_property
    def row_axes(self) -> tuple[Axis, ...]:
        """The spatial axes along which any rank carries other rows than it owns: the halo's axes.

        The rows are those of the framed tensor of the axis, see `halo_axes`.
        """
        axes = (axis for tensor in TENSORS for axis in self.nest.framed(tensor) if self.halo(axis).moves)
        return tuple(sorted(axes))

    def halo(self, axis: Axis, zeros: bool = False) -> HaloRows:
        """Rows of the framed tensor along a spatial axis, over all blocks; `zeros`: with those around."""
        tensor: Tensor = "Out" if axis in self.nest.turned else "In"
        members = dict(self.shard_cuts[tensor]).get(axis, 1)
        extent, parts = getattr(self.nest.extents, axis), getattr(self.grid, axis)
        return halo_rows(self.nest.windows[axis], extent, parts, members, zeros)

    def halo_axes(self, tensor: Tensor) -> tuple[Axis, ...]:
        """The axes along which ranks carry other rows of a tensor than they own."""
        return tuple(axis for axis in self.row_axes if axis in self.nest.framed(tensor))

    def halo_words(self, tensor: Tensor, returns: bool = False) -> int:
        """The most words of a tensor that a process receives from its neighbours in one halo exchange.

        By default before a pass that reads the tensor. returns: after a pass that writes it, when neighbours
        send sums of the words that the process owns. An upper bound where blocks or shards are uneven: then
        the largest of one dimension need not be those of another.
        """
        beyond = self.beyond(tensor, returns)
        if not beyond:
            return 0
        framed, parts = self.nest.framed(tensor), dict(self.shard_cuts[tensor])
        whole = (dim for dim in DIMS[tensor] if dim not in framed)
        flat: int = math.prod(-(-getattr(self.most_work, dim) // parts.get(dim, 1)) for dim in whole)
        return beyond * flat

    def beyond(self, tensor: Tensor, returns: bool = False) -> int:
        """The same per position of the dimensions along which no block reads rows of others."""
        rows = [self.halo(axis) for axis in self.nest.framed(tensor)]
        if not any(row.moves for row in rows):
            return 0
        most = 0
        for kinds in product(*(row.kinds for row in rows)):
            carried, owned, wanted, _ = map(math.prod, zip(*kinds, strict=True))
            most = max(most, (wanted if returns else carried) - owned)
        return most

    @cached_property
    def keeps_zeros(self) -> bool:
        """Whether the widened shard of In has the zeros of the padding around it, so no kernel copies it.

        So if no other process reads the shard, padding meets the cut of an axis, and the zeros add at most a
        tenth to the largest buffer. Kernels on blocks of input rows lay zeros of their own. `padded_volume`
        counts the zeros.
        """
        if self.nest.turned or self.group_size("In") > 1 or not self.halo_axes("In"):
            return False
        windows = [(getattr(self.grid, axis), self.nest.windows[axis]) for axis in SPATIAL]
        if any(window.padding < 0 for _, window in windows):
            return False
        if not any(parts > 1 and (window.padding or window.trailing) for parts, window in windows):
            return False
        padded, bare = (math.prod(self.halo(axis, zeros).room for axis in SPATIAL) for zeros in (True, False))
        return 10 * padded <= 11 * bare

    # -- boxes ----------------------------------------------------------------------------------------

    def slice_owned(self, tensor: Tensor, at: PerAxis) -> Box:
        """What the group owns together: each dimension cut along its own grid axis."""
        sizes = zip(DIMS[tensor], self.nest.shapes[tensor], strict=True)
        return tuple(cut((0, n), getattr(self.grid, dim, 1), getattr(at, dim, 0)) for dim, n in sizes)

    def owned(self, tensor: Tensor, at: PerAxis) -> Box:
        """The box that this process alone owns; possibly empty."""
        parts = member_parts(self.shard_cuts[tensor], self.member(tensor, at))
        slices = zip(DIMS[tensor], self.slice_owned(tensor, at), strict=True)
        return tuple(cut(whole, *parts.get(dim, (1, 0))) for dim, whole in slices)

    def needed(self, tensor: Tensor, at: PerAxis) -> Box:
        """The box that the work block touches."""
        return self.touched(tensor, self.work(at))

    def touched(self, tensor: Tensor, block: Block) -> Box:
        """The box of a tensor that a block (axis -> interval) of the nest touches."""
        windows, framed = self.nest.windows, self.nest.framed(tensor)

        def along(dim: str, extent: int) -> Interval:
            if dim not in block:
                return 0, extent  # a kernel dimension: never split
            if dim in framed:
                return windows[dim].reach(*block[dim])
            return block[dim]

        return tuple(along(d, n) for d, n in zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))

    def carried(self, tensor: Tensor, at: PerAxis) -> Box:
        """The part of the needed slice that this process hands to its group."""
        framed = self.nest.framed(tensor)
        if not framed:
            return self.owned(tensor, at)
        parts = member_parts(self.shard_cuts[tensor], self.member(tensor, at))
        owned, needed = self.owned(tensor, at), self.needed(tensor, at)

        def along(dim: str, own: Interval, need: Interval) -> Interval:
            if dim not in framed:
                return own
            return widen(own, need, *parts.get(dim, (1, 0)))

        return tuple(along(*each) for each in zip(DIMS[tensor], owned, needed, strict=True))

    def padded_volume(self, tensor: Tensor, at: PerAxis, box: Box) -> int:
        """Words of a box of a tensor, with the zeros that the process keeps around it, see `keeps_zeros`."""
        if tensor != "In" or not self.keeps_zeros or not volume(self.carried(tensor, at)):
            return volume(box)
        work, windows, words = self.work(at), self.nest.windows, 1
        for dim, rows in zip(DIMS[tensor], box, strict=True):
            explicit = dim in SPATIAL and not windows[dim].plain(*work[dim])
            words *= length(rows) + (sum(windows[dim].pads(*work[dim])) if explicit else 0)
        return words

    def room(self, tensor: Tensor, at: PerAxis) -> Box:
        """The box of the buffer in which the process keeps its shard of a tensor.

        It holds the shard and, with `ghosts`, all that the process carries: the halo is received into it.
        """
        own = self.owned(tensor, at)
        if not (self.ghosts and self.halo_axes(tensor)):
            return own
        return tuple(map(hull, own, self.carried(tensor, at)))


def most_pairs(nest: Nest, axis: Axis, parts: int) -> int:
    """The most iterations of any block, of so many, along an axis; along a turned one, pairs (row, tap)."""
    extent: int = getattr(nest.extents, axis)
    return most_taps(nest.windows[axis], extent, parts) if axis in nest.turned else -(-extent // parts)


def load_of(nest: Nest, most: Callable[[Axis], Any]) -> Any:
    """`Distribution.load`, from the `most_pairs` of each axis; of many grids from arrays of them."""
    return -(-math.prod(map(most, AXES)) // math.prod(nest.windows[axis].kernel for axis in nest.turned))


@lru_cache(maxsize=4096)
def most_taps(window: Window, extent: int, parts: int) -> int:
    """The most pairs (row, kernel tap) on real rows of any block, of so many, along a spatial axis."""
    blocks = cuts((0, extent), parts) if parts <= 4096 else [(0, 0)]
    most = max(window.taps(*block) for block in blocks)
    return most or -(-extent // parts) * window.kernel
