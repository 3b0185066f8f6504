"""Ranges of process grids, and lower bounds of the words of all grids in a range.

A range has, per axis, a contiguous part of the candidate counts of a `Space`. The search splits ranges into
halves down to single grids, but only if the bound of a range admits an optimum. So it never lists all
grids, and a million processes take no more than a few thousand ranges.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from synth.layer.axes import AXES, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.window import Window
from synth.search.grids import Space

EDGES = 4096  # the most cuts near the edges whose overlaps are computed one by one
ONCE: Mapping[Tensor, int] = dict.fromkeys(TENSORS, 1)

TIES: tuple[Axis, ...] = ("c", "w", "h", "d", "k", "g", "b")  # few parts along c first, then along w, ...
Key = tuple[int, int, tuple[int, ...]]  # (work, idle processes, counts in the order `TIES`)


def key_of(work: int, idle: int, parts: PerAxis) -> Key:
    """The order among grids with equal received words. The smallest key is the best.

    The least work comes first, then the fewest idle processes, then few parts along the axes of `TIES`.
    """
    return work, idle, tuple(getattr(parts, axis) for axis in TIES)


def shared_rows(window: Window, parts: int) -> int:
    """Lower bound of the rows that several blocks read, if `parts` blocks cover a dimension.

    A row that n blocks read counts n - 1 times.
    """
    cuts = parts - 1
    full = window.span - window.stride  # overlap at a cut far from the edges
    return max(cuts * window.overlap, cuts * full - _clipped(window))


@cache
def _clipped(window: Window) -> int:
    """How many fewer rows than elsewhere blocks share at cuts near the edges, summed over these cuts."""
    full = window.span - window.stride
    low = window.padding // window.stride + 1
    high = (window.size + window.padding - full - window.stride) // window.stride
    if low + window.out - high > EDGES:
        return full * window.out  # so that `shared_rows` uses the other bound
    edges = {*range(1, min(low, window.out - 1) + 1), *range(max(1, high), window.out)}
    clipped = 0
    for cut in edges:
        before, after = window.reach(0, cut), window.reach(cut, window.out)
        shared = max(0, before[1] - after[0]) if before != (0, 0) and after != (0, 0) else 0
        clipped += max(0, full - shared)
    return clipped


@dataclass(frozen=True)
class Range:
    """Per axis of `AXES`, the first and the last index into its counts, both inclusive."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def single(self) -> bool:
        """Whether the range has one grid."""
        return self.first == self.last


class Ranges:
    """The ranges of one space. `cap`: the most iterations of a process."""

    def __init__(self, space: Space, cap: int) -> None:
        self.procs, self.exact, self.cap, nest = space.procs, space.exact, cap, space.nest
        self.extents = tuple(nest.extents)
        self.counts = [space.counts(axis) for axis in AXES]
        self.words = nest.words
        n = nest.extents
        self._flat = n.b * n.g * n.c  # words of In per input position
        self._windows = [(AXES.index(a), nest.windows[a]) for a in SPATIAL]

    def whole(self) -> Range | None:
        """The range of all grids of the space, or None if there are none."""
        if not all(self.counts):
            return None
        return self.narrowed([0] * len(AXES), [len(each) - 1 for each in self.counts])

    def grid(self, at: tuple[int, ...]) -> PerAxis:
        """The grid with the counts at these indices."""
        return PerAxis(*(counts[i] for counts, i in zip(self.counts, at, strict=True)))

    def halves(self, whole: Range) -> Iterator[Range]:
        """Two ranges that together have the grids of a range, narrowed and without empty ranges.

        The cut is along the axis whose counts have the largest ratio.
        """
        axis = max(
            range(len(AXES)), key=lambda a: self.counts[a][whole.last[a]] / self.counts[a][whole.first[a]]
        )
        counts, low, high = self.counts[axis], whole.first[axis], whole.last[axis]
        middle = bisect_right(counts, math.isqrt(counts[low] * counts[high]), low + 1, high)
        for begin, end in ((low, middle - 1), (middle, high)):
            first, last = list(whole.first), list(whole.last)
            first[axis], last[axis] = begin, end
            narrowed = self.narrowed(first, last)
            if narrowed:
                yield narrowed

    def narrowed(self, first: list[int], last: list[int]) -> Range | None:
        """The range without counts that no grid of at most P processes within the work cap can have.

        None if no grid remains. Changes its arguments.
        """
        least = [counts[i] for counts, i in zip(self.counts, first, strict=True)]
        most = [counts[i] for counts, i in zip(self.counts, last, strict=True)]
        blocks = [-(-n // parts) for n, parts in zip(self.extents, most, strict=True)]
        fewest, largest, work = math.prod(least), math.prod(most), math.prod(blocks)
        for axis, counts in enumerate(self.counts):
            low, high = first[axis], last[axis]
            block = self.cap // (work // blocks[axis])
            if block == 0:
                return None
            wanted = -(-self.extents[axis] // block)
            if self.exact:
                wanted = max(wanted, -(-self.procs // (largest // most[axis])))
            if counts[low] < wanted:
                low = bisect_left(counts, wanted, low, high + 1)
            allowed = self.procs // (fewest // least[axis])
            if counts[high] > allowed:
                high = bisect_right(counts, allowed, low, high + 1) - 1
            if low > high:
                return None
            if low != first[axis]:
                fewest = fewest // least[axis] * counts[low]
                first[axis] = low
            if high != last[axis]:
                largest = largest // most[axis] * counts[high]
                work = work // blocks[axis] * -(-self.extents[axis] // counts[high])
                last[axis] = high
        return Range(tuple(first), tuple(last))

    def bound(self, within: Range, moves: Mapping[Tensor, int] = ONCE) -> int:
        """Lower bound of the words that the average process receives, over all grids of a range.

        `moves`: how often each tensor is communicated. If each is communicated once, the average on a grid
        of S processes is (|In|·H·k + |Ker|·x + |Out|·c - total words) / S, with the counts k, x, c of the
        grid. The factor H accounts for the rows that neighbours share. The numerator grows with every
        count, so the bound uses the least counts in the numerator and the greatest S.
        """
        least = self.grid(within.first)
        inputs = self._flat * math.prod(w.size + shared_rows(w, least[axis]) for axis, w in self._windows)
        sums = moves["In"] * (inputs * least.k - self.words["In"])
        sums += moves["Ker"] * self.words["Ker"] * (least.x - 1)
        sums += moves["Out"] * self.words["Out"] * (least.c - 1)
        return max(0, -(-sums // min(self.procs, self.grid(within.last).size)))

    def key(self, within: Range) -> Key:
        """A lower bound of the keys of all grids of a range."""
        most = self.grid(within.last)
        work = math.prod(-(-n // parts) for n, parts in zip(self.extents, most, strict=True))
        return key_of(work, max(0, self.procs - most.size), self.grid(within.first))
