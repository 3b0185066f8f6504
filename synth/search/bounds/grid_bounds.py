"""Lower bounds of the words of grids that may fit the limit of a request: of ranges, and of one grid.

A set of grids is left out where lower bounds of its memory exceed the limit, or where the search assumes that
it does not fit (`effort`).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator

from synth.layer.axes import Axis, PerAxis, Tensor
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.search.bounds.heavy_processes import heavy_words
from synth.search.bounds.range_words import Choice, Floors, RangeWords, Within, average
from synth.search.effort import Effort
from synth.search.grid_ranges import Range, Ranges
from synth.search.pass_tilings import PassTilings
from synth.search.request import Request
from synth.search.training_step import StepFloors, preferred_orders


class GridBounds:
    """The bounds of one search. Grids that do not fit are noted in `effort`."""

    def __init__(self, request: Request, ranges: Ranges, effort: Effort) -> None:
        self.request, self.ranges, self.effort = request, ranges, effort
        self.limited = RangeWords(request, ranges)

    def of_grid(self, footprints: Footprints, floors: Floors) -> int | None:
        """A lower bound of the words of plans on a grid that may fit; None if none may, which is noted.

        floors: what `fewest` has found for the grid.
        """
        distribution, limit = footprints.distribution, self.request.limit_words
        floor = None if limit is None else self._floors(footprints)
        fitting: list[frozenset[Tensor]] = []
        fewest: int | None = None
        least = 0
        for reused, words in self._by_words(distribution, floors):
            if fewest is not None and words >= fewest:
                break
            if any(reused <= more for more in fitting):
                continue
            if floor is not None and limit is not None and (needed := floor(reused, limit)) > limit:
                least = min(least or needed, needed)
                continue
            fitting.append(reused)
            again = self.request.reusable - reused
            words = max(words, heavy_words(distribution, self.request.sequences[0], again))
            fewest = words if fewest is None else min(fewest, words)
        if fewest is None:
            self.note_unfit(distribution, least)
        return fewest

    def _by_words(self, distribution: Distribution, floors: Floors) -> list[tuple[frozenset[Tensor], int]]:
        """The sets of tensors that passes may reuse, and lower bounds of the words with them, ascending.

        Among equal words, larger sets are first. Sets with which no tiling fits are left out.
        """
        grid, turned = distribution.grid, distribution.nest.turned
        copied = self.ranges.copied(grid, turned)
        found = []
        for reused, moves in self.limited.reuses.items():
            floor = floors.get((turned, reused), 0)
            if floor is not None:
                found.append((reused, max(floor, average(moves, copied, grid.size))))
        return sorted(found, key=lambda each: each[1])

    def choices(self, turns: Iterable[tuple[Axis, ...]]) -> Iterator[Choice]:
        """Choices of turned axes with every set of tensors that passes may reuse."""
        return itertools.product(turns, self.limited.reuses)

    def fewest(self, grids: Range | PerAxis, floors: Floors) -> int | None:
        """A lower bound of the words of plans on some grids that may fit the memory; None if none may.

        Whether they may fit is known by lower bounds of the memory, or by what the search assumes. floors:
        the choices to look at, with what is known of them on more grids. A choice is looked at only while its
        floor is the least, and its floor is then that of these grids.
        """
        limit = self.request.limit_words
        if limit is None:
            return 0
        within = self.within(grids)
        choices = [choice for choice, floor in floors.items() if floor is not None]
        # (floor, whether the choice is not looked at yet, place among the choices)
        queue = [(floors[choice] or 0, True, place) for place, choice in enumerate(choices)]
        heapq.heapify(queue)
        fewest: int | None = None
        while queue and fewest is None:
            floor, unknown, place = heapq.heappop(queue)
            choice = choices[place]
            if not unknown:
                fewest = floor
            elif (ample := within.ample(*choice)) > floor:
                floors[choice] = ample
                heapq.heappush(queue, (ample, True, place))
            else:
                words = within.fewest(*choice)
                floors[choice] = None if words is None else max(words, floor)
                if words is not None:
                    heapq.heappush(queue, (max(words, floor), False, place))
        if fewest is not None and self.effort.assumes:
            raised = (
                self.effort.raised(within.memory(turned), within.least, within.most, turned)
                for turned in {choice[0]: None for choice in choices if floors[choice] is not None}
            )
            if min(raised) > limit:
                self.effort.leave(fewest)
                return None
        return fewest

    def note_unfit(self, distribution: Distribution, needed: int) -> None:
        """Note a grid that needs at least `needed` words, more than the limit."""
        grid, turned = distribution.grid, distribution.nest.turned
        self.effort.note_unfit(grid, turned, needed, self.limited.memory(turned)(grid, grid, grid.size))

    def within(self, grids: Range | PerAxis) -> Within:
        """Lower bounds of the words and the memory of some grids."""
        if isinstance(grids, PerAxis):
            return self.limited.within(grids, grids)
        return self.limited.within(self.ranges.grid(grids.first), self.ranges.grid(grids.last))

    def _floors(self, footprints: Footprints) -> Callable[[frozenset[Tensor], int], int]:
        """(Reused tensors, enough) -> a lower bound of the memory in words, or the first within enough."""
        request = self.request
        if request.pass_ == "training":
            orders = preferred_orders(footprints, request.transposed, request.gradients)
            return StepFloors(footprints, request.stationary, request.panels, orders)
        template = PassPlan(pass_=request.pass_)
        floor = PassTilings(footprints, request.stationary, template, request.panels).least_floor
        return lambda *_: floor
