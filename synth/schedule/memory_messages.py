"""Memory of messages: what gathers hold beside shards, and what a program keeps for later messages.

A gathered slice is assembled from pieces. A rank's own piece is its shard, or a copy of it if its words are
not consecutive there. With a limit of memory, and for large pieces, the others arrive

    in place    in the slice, if every piece is consecutive in it;
    apart       in buffers beside it, from which they are copied.

Without a limit small pieces travel in one message: they arrive in one buffer, from a copy for each receiver.
Two equal pieces need no copies. And the buffers of large pieces, and those of partial sums, stay in a pool
for later messages. So they are held throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from synth.layer.axes import DIMS, PerAxis, Tensor
from synth.runtime.grid.rules.shared_rounds import LARGE
from synth.schedule.panel_rotation import rotated
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import lowered

if TYPE_CHECKING:
    from synth.schedule.memory import Footprints

Buffers = tuple[int, int]  # how many, of how many words each


class Arrival(NamedTuple):
    """Words of one gather of a slice on the rank that holds most.

    flight: from its start until the slice is assembled. joining: beside these at that moment.
    after: the slice. taken: buffers of the pool, if there is one; else they are a part of `flight`.
    """

    flight: int
    joining: int
    after: int
    taken: Buffers = (0, 0)


def most_arriving(arrivals: Sequence[Arrival]) -> int:
    """Words at most, from the start of gathers that start together until the last slice is assembled."""
    live = most = sum(each.flight for each in arrivals)
    for each in arrivals:
        most = max(most, live + each.joining)
        live += each.after - each.flight
    return max(most, live)


class Messages:
    """The messages of one distribution. `footprints.kept` says whether buffers are kept."""

    def __init__(self, footprints: Footprints) -> None:
        self.footprints, self.distribution = footprints, footprints.distribution
        self._arrivals: dict[Tensor, Arrival] = {}

    def arrival(self, tensor: Tensor) -> Arrival:
        """The gather of a whole slice."""
        if tensor not in self._arrivals:
            self._arrivals[tensor] = self._arrival(tensor)
        return self._arrivals[tensor]

    def _arrival(self, tensor: Tensor) -> Arrival:
        words, own = self.footprints.slice(tensor), self._least_own(tensor)
        in_place, others = self._in_place(tensor), self.distribution.group_size(tensor) - 1
        if self.sent_together(tensor):
            carried = self.footprints.carried(tensor)
            sent = 0 if others == 1 and carried == own else carried * (others + 1)
            return Arrival(words + sent, 0 if in_place else max(0, words - sent), words)
        copy = self.footprints.carried(tensor) if self._copied(tensor) else 0
        if in_place:
            return Arrival(words + copy, 0, words)
        if self.footprints.kept:
            return Arrival(copy, words, words, (others, -(-(words - own) // others)))
        return Arrival(words - own + copy, words, words)

    def sent_together(self, tensor: Tensor) -> bool:
        """Whether all pieces of a slice travel in one all-to-all."""
        size = self.footprints.carried(tensor) * self.distribution.nest.word_bytes
        return self.footprints.kept and size < LARGE

    def _extents(self, tensor: Tensor) -> list[tuple[int, int]]:
        """(extent of the largest slice, parts that shards cut it into) of each dimension."""
        nest, work = self.distribution.nest, self.footprints.work
        parts, framed = dict(self.distribution.shard_cuts[tensor]), nest.framed(tensor)
        sizes = zip(DIMS[tensor], nest.shapes[tensor], strict=True)
        extents = (
            self.footprints.rows(dim, PassPlan()) if dim in framed else getattr(work, dim, n)
            for dim, n in sizes
        )
        return [(n, parts.get(dim, 1)) for dim, n in zip(DIMS[tensor], extents, strict=True)]

    def _least_own(self, tensor: Tensor) -> int:
        """Words of the largest slice that any rank of its group has itself; 0 where rows are shared."""
        framed, parts = self.distribution.nest.framed(tensor), dict(self.distribution.shard_cuts[tensor])
        if any(parts.get(axis, 1) > 1 for axis in framed):
            return 0
        return math.prod(extent // count for extent, count in self._extents(tensor))

    def _in_place(self, tensor: Tensor) -> bool:
        """Whether all pieces are consecutive in the slice: nothing is cut after the first long dimension."""
        long = False
        for extent, parts in self._extents(tensor):
            if long and parts > 1:
                return False
            long = long or -(-extent // parts) > 1
        return True

    def _copied(self, tensor: Tensor) -> bool:
        """Whether the own piece is not consecutive in the buffer that has it."""
        wide = self.footprints.stored(tensor) > self.footprints.carried(tensor)
        return self.distribution.ghosts and wide

    # -- what is kept ---------------------------------------------------------------------------------

    def kept(self, pass_plans: Sequence[PassPlan], overlap: bool = False) -> int:
        """Words of the buffers that the passes of a program keep for its next run.

        overlap: whether the sums of the second pass are on their way during the third.
        """
        pool = Pool()
        if not self.footprints.kept:
            return 0
        for number, pass_plan in enumerate(pass_plans):
            deferred = overlap and number == 1
            for buffers in self._gathered(pass_plan):
                pool.release(pool.take(buffers))
            sums = pool.take(self._sums(pass_plan))
            if not deferred:
                pool.release(sums)
        return pool.words

    def _gathered(self, pass_plan: PassPlan) -> Iterator[list[Buffers]]:
        """Buffers that are taken together: of whole slices, then of the panels of a step."""
        d = self.distribution
        tree = lowered(pass_plan.structure, d.groups, d.row_axes, turned=d.nest.turned)
        panels = [gather.tensor for gather in tree.loop.gathers]
        slices = [gather.tensor for gather in tree.gathers]
        if pass_plan.steps == 1:
            slices, panels = slices + panels, []
        yield [self.arrival(tensor).taken for tensor in slices]
        yield [self.panel(tensor, pass_plan).taken for tensor in panels]

    def panel(self, tensor: Tensor, pass_plan: PassPlan) -> Arrival:
        """The gather of a panel in a loop; with a limit, as if the own piece arrived, too.

        A panel that one rank carries arrives as it is. Of two such panels a rank has one itself.
        """
        words, others = self.footprints.tile(tensor, pass_plan), self.distribution.group_size(tensor) - 1
        if not self.footprints.kept:
            return Arrival(words, words, words)
        if self._is_one_piece(tensor, pass_plan):
            return Arrival(0 if pass_plan.steps == 2 else words, 0, words)
        if tensor in rotated(self.distribution, pass_plan):
            pieces = -(-words // self.footprints.shards[tensor])
            return Arrival(0, words, words, (pieces, words // pieces))
        part = words
        for dim, parts in self.distribution.shard_cuts[tensor]:
            part = part * min(parts, getattr(pass_plan.counts, dim, 1)) // parts
        if part * self.distribution.nest.word_bytes < LARGE:
            sent = 0 if others == 1 and 2 * part == words else part * (others + 1)
            return Arrival(words + sent, words, words)
        return Arrival(0, words, words, (others, -(-(words - part) // others)))

    def _is_one_piece(self, tensor: Tensor, pass_plan: PassPlan) -> bool:
        """Whether one rank of its group carries a whole panel."""
        counts = pass_plan.counts
        cuts = self.distribution.shard_cuts[tensor]
        return all(getattr(counts, dim, 1) % parts == 0 for dim, parts in cuts)

    def _sums(self, pass_plan: PassPlan) -> list[Buffers]:
        """Partial sums of a panel: what others add up, and what they send. See `Footprints.in_transit`."""
        written = pass_plan.written
        members = self.distribution.group_size(written)
        if members == 1:
            return []
        at_once = pass_plan if pass_plan.stationary != written else replace(pass_plan, counts=PerAxis())
        tile = self.footprints.tile(written, at_once)
        own = min(tile, self.footprints.carried(written))
        return [(1, tile - own), (1, (members - 1) * own)]


class Pool:
    """Buffers that are used again: a message takes the smallest that fits, or one in place of the largest."""

    def __init__(self) -> None:
        self.free: dict[int, int] = {}  # words of a buffer -> how many are free
        self.words = 0  # of all buffers, free or taken

    def take(self, buffers: Sequence[Buffers]) -> list[Buffers]:
        """Take buffers; gives those that were taken."""
        taken = []
        for count, words in buffers:
            while count and words:
                size = min((each for each in self.free if each >= words), default=max(self.free, default=0))
                number = min(count, self.free[size]) if size else count
                if size:
                    self.free[size] -= number
                    self.free = {each: left for each, left in self.free.items() if left}
                self.words += number * max(0, words - size)
                taken.append((number, max(size, words)))
                count -= number
        return taken

    def release(self, taken: Sequence[Buffers]) -> None:
        """Return what was taken."""
        for count, words in taken:
            self.free[words] = self.free.get(words, 0) + count
