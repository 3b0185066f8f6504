"""The grid with the least memory: best-first search by the lower bound of the memory.

Every 128th range is followed down to one grid, for a solution early. The search ends after some steps, if
many grids need about the same.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple

from synth.layer.axes import Axis, PerAxis
from synth.search.grid_ranges import Range, Ranges

STEPS = 20_000  # of a search whose answer is the plan; a step is the examination of one range of grids
DIVE = 128  # the search descends from every 128th range directly to one grid

# (memory in words, its grid, its turned axes)
Lean = tuple[int, PerAxis, tuple[Axis, ...]]


class Leanest(NamedTuple):
    """The result. best: of the grids that were met. floor: words that every plan needs. met: all of them."""

    best: Lean | None
    floor: int
    met: list[Lean]

    @property
    def sure(self) -> bool:
        """Whether no grid needs less."""
        return self.best is None or self.floor >= self.best[0]


def leanest(
    ranges: Ranges,
    memory_bound: Callable[[Range], int],
    needed: Callable[[PerAxis, int | None], list[Lean]],
    limit_words: int,
    steps_of_grid: int,
    steps: int,
) -> Leanest:
    """The least memory of all grids, in words.

    needed: the memory of one grid for each choice of turned axes; where that is more than its second
    argument, a lower bound above this is enough. limit_words: grids that need as much are of use, too.
    steps: after so many the search ends.
    """
    whole, queue, insertions = ranges.whole(), list[tuple[int, int, Range]](), itertools.count()
    if whole:
        queue.append((memory_bound(whole), next(insertions), whole))
    best: Lean | None = None
    met: list[Lean] = []
    steps_left = steps
    while queue:
        bound, number, each = heapq.heappop(queue)
        if steps_left <= 0 or (best is not None and bound >= best[0]):
            return Leanest(best, bound, met)
        enough = max(best[0], limit_words) if best else None
        if each.single or number % DIVE == 0:
            grid = _descend(ranges, each, memory_bound)
            found = needed(grid, enough) if grid else []
            met += found
            best = min(found if best is None else [best, *found], default=None)
            steps_left -= steps_of_grid * bool(found)
        steps_left -= 1
        for half in [] if each.single else ranges.halves(each):
            heapq.heappush(queue, (memory_bound(half), next(insertions), half))
    return Leanest(best, best[0] if best else 0, met)


def _descend(ranges: Ranges, each: Range, memory_bound: Callable[[Range], int]) -> PerAxis | None:
    """A grid of a range, found by descent to the lower bounds; None if that ends at an empty range."""
    while not each.single:
        halves = list(ranges.halves(each))
        if not halves:
            return None
        each = min(halves, key=memory_bound)
    return ranges.grid(each.first)
