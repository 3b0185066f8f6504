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
from functools import cache, partial
from itertools import combinations

from synth.layer.axes import AXES, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.window import Window
from synth.search.grids import Space

EDGES = 4096  # the most cuts near the edges whose overlaps are computed one by one
ONCE: Mapping[Tensor, int] = dict.fromkeys(TENSORS, 1)

TIES: tuple[Axis, ...] = ("c", "w", "h", "d", "k", "g", "b")  # few parts along c first, then along w, ...
# (work, idle processes, counts in the order `TIES`, turned axes)
Key = tuple[int, int, tuple[int, ...], int]


def key_of(work: int, idle: int, parts: PerAxis) -> Key:
    """The order among grids with equal received words. The smallest key is the best.

    The least work comes first, then the fewest idle processes, then few parts along the axes of `TIES`, then
    few turned axes.
    """
    return work, idle, tuple(getattr(parts, axis) for axis in TIES), 0


def shared_rows(window: Window, parts: int) -> int:
    """Lower bound of the rows that several blocks read, if `parts` blocks cover a dimension.

    A row that n blocks read counts n - 1 times.
    """
    cuts = parts - 1
    if window.divisor > 1:
        return cuts * window.overlap
    full = window.span - window.stride  # overlap at a cut far from the edges
    return max(cuts * window.overlap, cuts * full - _clipped(window))


def rows_reached(window: Window, parts: int) -> int:
    """Lower bound of the rows that `parts` blocks read, in the sum over the blocks.

    Rows that no block reads do not count: of a turned window, output rows that read nothing but padding.
    """
    first, last = window.reach(0, window.out)
    return last - first + shared_rows(window, parts)


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
    """The ranges of one space.

    cap: the most iterations of a process. turnable: axes that may be turned.
    """

    def __init__(self, space: Space, cap: int, turnable: tuple[Axis, ...] = ()) -> None:
        self.procs, self.exact, self.cap, nest = space.procs, space.exact, cap, space.nest
        self.extents = tuple(nest.extents)
        self.counts = [space.counts(axis) for axis in AXES]
        self.words = nest.words
        n = nest.extents
        self._flat = n.b * n.g * n.c, n.b * n.g * n.k  # words of In and of Out per position
        # of every axis, the rows of In that blocks read, and those of Out that they add to if it is turned
        self._rows = [
            (a, window, cache(partial(rows_reached, window)), cache(partial(rows_reached, window.turned)))
            for a, window in nest.windows.items()
        ]
        self.turnable = turnable

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

    def turns(self, grid: PerAxis, must: tuple[Axis, ...] = ()) -> Iterator[tuple[Axis, ...]]:
        """The choices of turned axes on a grid: of those that are cut, all of `must`, some of `turnable`."""
        free = [axis for axis in self.turnable if getattr(grid, axis) > 1 and axis not in must]
        fixed = tuple(axis for axis in must if getattr(grid, axis) > 1)
        for count in range(len(free) + 1):
            for more in combinations(free, count):
                yield tuple(axis for axis in SPATIAL if axis in fixed or axis in more)

    def bound(self, within: Range, moves: Mapping[Tensor, int] = ONCE, must: tuple[Axis, ...] = ()) -> int:
        """Lower bound of the words that the average process receives, over all grids of a range.

        `must`: the axes that are turned wherever they are cut. `moves`: how often each tensor is
        communicated. If each is communicated once, the average on a grid of S processes is
        (|In|·H·k + |Ker|·x + |Out|·G·c - total words) / S, with the counts k, x, c of the grid. The factors
        H and G account for the rows that neighbours share. The numerator grows with every count, so the
        bound uses the least counts in the numerator and the greatest S.
        """
        least = self.grid(within.first)
        size = min(self.procs, self.grid(within.last).size)
        return min(self.grid_bound(least, moves, turned, size) for turned in self.turns(least, must))

    def grid_bound(
        self, least: PerAxis, moves: Mapping[Tensor, int], turned: tuple[Axis, ...], size: int = 0
    ) -> int:
        """`bound` of all grids from `least` on of at most `size` processes (0: of this grid alone)."""
        sums = sum(moves[tensor] * words for tensor, words in self.copied(least, turned).items())
        return max(0, -(-sums // (size or least.size)))

    def copied(self, least: PerAxis, turned: tuple[Axis, ...]) -> dict[Tensor, int]:
        """Tensor -> its words that processes need and do not own, in the sum over all processes.

        The terms of the numerator of `bound`, on any grid from `least` on with some turned axes.
        """
        inputs, outputs = self._sliced(least, turned)
        return {
            "In": inputs * least.k - self.words["In"],
            "Ker": self.words["Ker"] * (least.x - 1),
            "Out": outputs * least.c - self.words["Out"],
        }

    def again(self, least: PerAxis, turned: tuple[Axis, ...]) -> dict[Tensor, int]:
        """Tensor -> words that all processes receive whenever all of its panels move, without halos."""
        inputs, outputs = self._sliced(least, turned)
        return {
            "In": inputs * (least.k - 1),
            "Ker": self.words["Ker"] * (least.x - 1),
            "Out": outputs * (least.c - 1),
        }

    def _sliced(self, least: PerAxis, turned: tuple[Axis, ...]) -> tuple[int, int]:
        """Words of the slices of In and of Out in all blocks, with the rows that neighbours share."""
        inputs, outputs = self._flat
        for axis, window, read, written in self._rows:
            parts = getattr(least, axis)
            inputs *= window.size if axis in turned else read(parts)
            outputs *= written(parts) if axis in turned else window.out
        return inputs, outputs

    def key(self, within: Range) -> Key:
        """A lower bound of the keys of all grids of a range."""
        most = self.grid(within.last)
        work = math.prod(-(-n // parts) for n, parts in zip(self.extents, most, strict=True))
        return key_of(work, max(0, self.procs - most.size), self.grid(within.first))
