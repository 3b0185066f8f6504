"""Memory of a plan: the most words any process holds at once, phase by phase.

    always   its shares of the tensors that are read, sums for its share of the one that is written (where
             that one is not stationary), and slices that are kept between passes
    halo     + the widened share of In, + the strips that travel
    expand   + the stationary slice, + the pieces of slices on their way (tensors that are read)
    loop     + two panels per streaming tensor that is read (one in use; its pieces, or the next one on its
             way), the written panel and the partial sums on their way, the result of the local kernel and
             a padded copy of its input
    reduce   + the partial sums on their way, among them the share that is finished of the tensor written; of
             dIn the strips that travel, and its share beside the sums

The sums of several panels travel beside the next one, those of a single one when the kernel is done. A
slice that only one process needs is used where it lies: no buffer, no words. Every item is taken at its
largest over all processes (the widened share with its strips as one), so the sum is an upper bound that the
simulator's high-water mark stays under, and reaches where cuts are even and no tile is padded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

import numpy as np

from synth.layer import interval_arrays as spans
from synth.layer.axes import DIMS, SPATIAL, TENSORS, PerAxis, Tensor
from synth.layer.interval_arrays import Many
from synth.layer.intervals import cut, length
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan

EXACT = 4096  # blocks along a dimension up to which extremes are found by looking at every block
KINDS = 16  # of blocks along a dimension that are told apart


@dataclass(frozen=True)
class Memory:
    """Words a process holds at most, per phase. `words` is the largest phase."""

    shares: int
    halo: int
    expand: int
    loop: int
    reduce: int

    def beside(self, words: int) -> Memory:
        """The same with `words` more alive all the time."""
        phases = (self.halo, self.expand, self.loop, self.reduce)
        return Memory(self.shares + words, *(phase + words if phase else 0 for phase in phases))

    def most(self, other: Memory) -> Memory:
        """The larger of two, phase by phase."""
        mine = (self.shares, self.halo, self.expand, self.loop, self.reduce)
        others = (other.shares, other.halo, other.expand, other.loop, other.reduce)
        return Memory(*map(max, zip(mine, others, strict=True)))

    @property
    def words(self) -> int:
        """High-water mark in words."""
        return max(self.halo, self.expand, self.loop, self.reduce)


@dataclass(frozen=True)
class HaloRows:
    """Rows along one spatial dimension over all blocks and their shares.

    `kinds` has what matters of any of them: rows that are carried, those of them that are owned, and owned
    rows counted for every block that reads them, the own one included.
    """

    carried: int  # at most
    kept: int  # of them owned, at least
    moves: bool
    kinds: tuple[tuple[int, int, int], ...]


@cache
def halo_rows(window: Window, out: int, parts: int, members: int = 1) -> HaloRows:
    """What blocks of rows need beyond the rows they own, where `members` share the rows of each."""
    if parts * members > EXACT:
        widest = _reach_bound(window, -(-out // parts))
        return HaloRows(widest, 0, True, ((widest, 0, _wanted_bound(window, out, parts, members)),))
    reaches = np.array([window.reach(*cut((0, out), parts, i)) for i in range(parts)], np.int64).T
    block, part = np.divmod(np.arange(parts * members), members)
    line = spans.cut((np.zeros_like(block), np.full_like(block, window.size)), parts, block)
    own = spans.cut(line, members, part)
    carried = spans.widened(own, (reaches[0][block], reaches[1][block]), members, part)
    kept = spans.lengths(spans.meet(carried, own))
    wanted = spans.covered((reaches[0], reaches[1]), own)
    rows = np.stack([spans.lengths(carried), kept, wanted], axis=1)
    moves = bool((np.array(carried) != np.array(own)).any())
    return HaloRows(int(rows[:, 0].max()), int(kept.min()), moves, _foremost(rows))


def _foremost(rows: Many) -> tuple[tuple[int, int, int], ...]:
    """Of `HaloRows.kinds` those that move more than others: more carried, fewer kept, more wanted.

    One that is none of them, and moves more than all, where they are many.
    """
    found: list[tuple[int, int, int]] = []
    for carried, kept, wanted in sorted({(c, -k, w) for c, k, w in rows.tolist()}, reverse=True):
        if not any(kept <= k and wanted <= w for _, k, w in found):
            found.append((carried, kept, wanted))
        if len(found) > KINDS:
            return ((int(rows[:, 0].max()), int(rows[:, 1].min()), int(rows[:, 2].max())),)
    return tuple((carried, -kept, wanted) for carried, kept, wanted in found)


def _wanted_bound(window: Window, out: int, parts: int, members: int) -> int:
    """Owned rows, each counted for every block that reads it, at most.

    Of two blocks beside each other both read no more than the frame of a row is longer than the stride.
    """
    line, both = -(-window.size // parts), max(0, window.frame(1) - window.stride)
    own = -(-line // members)
    ends = -(-(own + both) // (window.stride * (out // parts)))
    return own + min(own, both) * min(ends, parts - 1)


def plainly_padded(window: Window, extent: int, parts: int, tiles: int) -> bool:
    """Whether the local kernel's own `padding=` serves every tile along a dimension."""
    return window.plain(0, extent) if parts * tiles == 1 else window.padding == 0


@cache
def tile_rows(window: Window, out: int, parts: int, tiles: int) -> int:
    """The most rows that any tile of any block reads."""
    if parts * tiles > EXACT:
        block = -(-out // parts)
        return _reach_bound(window, -(-block // tiles))
    blocks = (cut((0, out), parts, i) for i in range(parts))
    return max(length(window.reach(*cut(block, tiles, j))) for block in blocks for j in range(tiles))


def _reach_bound(window: Window, rows: int) -> int:
    return min(window.size, window.frame(rows))


class Footprints:
    """The largest shares, slices and tiles of one distribution; shared by all plans of a pass on it."""

    def __init__(self, distribution: Distribution) -> None:
        self.distribution, self.nest, self.grid = distribution, distribution.nest, distribution.grid
        self.work = distribution.most_work

    def share(self, tensor: Tensor) -> int:
        """The most words that a process owns of a tensor."""
        parts = dict(self.distribution.shares[tensor])
        sizes = zip(DIMS[tensor], self.nest.shapes[tensor], strict=True)
        lines = ((dim, -(-n // getattr(self.grid, dim, 1))) for dim, n in sizes)
        return math.prod(-(-n // parts.get(dim, 1)) for dim, n in lines)

    @cached_property
    def shares(self) -> dict[str, int]:
        """Tensor -> `share`."""
        return {"In": self.share("In"), "Ker": self.share("Ker"), "Out": self.share("Out")}

    @cached_property
    def halo(self) -> tuple[int, int]:
        """(words of the widened share of In, words that strips add to them); zeros without a halo."""
        nest, parts = self.nest, dict(self.distribution.shares["In"])
        flat = math.prod(-(-getattr(self.work, d) // parts.get(d, 1)) for d in ("b", "g", "c"))
        rows = [
            halo_rows(nest.windows[a], getattr(nest.extents, a), getattr(self.grid, a), parts.get(a, 1))
            for a in SPATIAL
        ]
        if not any(row.moves for row in rows):
            return 0, 0
        most = 0
        for kinds in product(*(row.kinds for row in rows)):
            carried, kept, wanted = map(math.prod, zip(*kinds, strict=True))
            most = max(most, carried + (carried - kept) + (wanted - kept))
        widened = math.prod(row.carried for row in rows)
        return flat * widened, flat * (most - widened)

    def tile(self, tensor: Tensor, pass_plan: PassPlan) -> int:
        """The most words of a tensor that one tile touches."""
        t = pass_plan.sizes(self.work)
        match tensor:
            case "Ker":
                return t.g * t.k * t.c * self.nest.taps
            case "Out":
                return t.b * t.g * t.k * t.d * t.h * t.w
            case "In":
                return t.b * t.g * t.c * math.prod(self._rows(axis, pass_plan) for axis in SPATIAL)

    def _rows(self, axis: str, pass_plan: PassPlan) -> int:
        extent, parts = getattr(self.nest.extents, axis), getattr(self.grid, axis)
        return tile_rows(self.nest.windows[axis], extent, parts, getattr(pass_plan.counts, axis))

    def padded(self, pass_plan: PassPlan) -> int:
        """Words of the padded copy of an In tile, where padding is not the same on both sides."""
        t, words, plain = pass_plan.sizes(self.work), 1, True
        for axis in SPATIAL:
            window, extent = self.nest.windows[axis], getattr(self.nest.extents, axis)
            words *= window.frame(getattr(t, axis))
            plain &= plainly_padded(window, extent, getattr(self.grid, axis), getattr(pass_plan.counts, axis))
        return 0 if plain else t.b * t.g * t.c * words

    def in_transit(self, pass_plan: PassPlan) -> int:
        """Words of partial sums sent, kept and received when one tile of the written tensor is reduced."""
        written = pass_plan.written
        members = self.distribution.group_size(written)
        if members == 1:
            return 0
        tile = self.tile(written, pass_plan)
        return tile + (members - 1) * min(tile, self.carried(written))

    def travelling(self, pass_plan: PassPlan) -> int:
        """The most words that the result of a pass takes from its last step to the finished share."""
        written = pass_plan.written
        away = pass_plan.stationary != written and pass_plan.steps > 1  # earlier panels are in their place
        tile = pass_plan if away else replace(pass_plan, counts=PerAxis())
        waiting = self.in_transit(tile) + (self.carried(written) if away else 0)
        if written != "In":
            return max(waiting, self.shares[written])
        return max(waiting, self.carried("In") + self.shares["In"] + sum(self.halo))

    def carried(self, tensor: Tensor) -> int:
        """The most words that a process hands to, or sums for, its group."""
        return self.halo[0] or self.shares["In"] if tensor == "In" else self.shares[tensor]

    def slice(self, tensor: Tensor) -> int:
        """The most words that a work block touches of a tensor."""
        return self.tile(tensor, PassPlan())

    def memory(self, pass_plan: PassPlan) -> Memory:
        """Memory of the plan of a pass, in words."""
        grouped = {t: self.distribution.group_size(t) > 1 for t in TENSORS}
        stays, written = pass_plan.stationary, pass_plan.written
        base = sum(self.shares[t] for t in pass_plan.reads)
        apart = {t for t in TENSORS if grouped[t] or (t == "In" and t in pass_plan.kept and self.halo[0])}
        base += sum(self.slice(t) for t in pass_plan.kept if t in apart)
        base += self.carried(written) if stays != written else 0
        halo = 0
        if written != "In" and "In" not in pass_plan.kept:
            halo = base + sum(self.halo) + (self.slice(stays) if stays == written else 0)
            base += self.halo[0]
        base += sum(self.slice(t) for t in pass_plan.keeps if t in apart and t != stays)
        alone = stays != written and (stays in pass_plan.kept or stays not in apart)
        slice_ = 0 if alone else self.slice(stays)
        pieces = sum(self.slice(t) for t in pass_plan.expanded if grouped[t])
        panels = sum(self.tile(t, pass_plan) for t in pass_plan.brought if grouped[t])
        loop = base + slice_ + panels + max(panels, self._step(pass_plan, panels))
        reduce = 0
        if written == "In" and self.halo[0]:  # beside the sums their strips, and the share that is finished
            more = self.shares["In"] + self.halo[1]  # what was read last is still held
            reduce = base + more + (self.halo[0] if stays == written else slice_ + panels)
        if stays == written and grouped[written]:
            whole = replace(pass_plan, counts=PerAxis())
            reduce = max(reduce, base + slice_ + self.in_transit(whole))
        return Memory(base, halo, base + slice_ + pieces, loop, reduce)

    def _step(self, pass_plan: PassPlan, panels: int) -> int:
        """Words beside the panels in use, at most: the next ones, the kernel's result, sums on their way.

        The sums of a single panel leave when the result has been added to them. With two panels the next one
        travels in the first step and sums in the second, or both when the first result has been added.
        """
        flying = panels if pass_plan.steps > 1 else 0
        sums = self.tile(pass_plan.written, pass_plan)
        result = sums + self.padded(pass_plan)
        if pass_plan.stationary == pass_plan.written:
            return flying + result
        away = self.in_transit(pass_plan)
        return sums + sum(sorted((flying, result, away))[-pass_plan.steps :])
