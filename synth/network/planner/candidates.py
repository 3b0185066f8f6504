"""The grids that a class of layers can choose from, with lower bounds and exact costs.

`grid_family` lists the grids. `GridCandidates` sorts them by a lower bound of their cost and computes exact
costs on demand: received words by counting owned boxes. The seconds of all grids are computed at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from synth.layer.axes import AXES, PerAxis
from synth.machine.rank_groups import distinct_orders
from synth.network.grids.box_rows import distinct
from synth.network.grids.grid_family import family
from synth.network.grids.grid_table import GridTable, parts_of
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import GridDistributions, PlacedGrid
from synth.network.planner.counted_grids import CountedGrids, count_words, know_words, see_words
from synth.network.planner.timed_grids import TimedGrids
from synth.network.request import NetworkRequest
from synth.network.step_time.between import Between
from synth.schedule.ownership import Array
from synth.search.grids import Space, all_grids

BY_KINDS = 32  # grids whose words are counted together on one rank of every kind
ORDERS_PER_GRID = 2  # rank orders of one grid that become options
LOOSE = 1.05  # a bound that so many times it is less than the words is loose
SHOWN = 192  # grids of a selection whose bounds are computed first
CLASSES = 64  # classes that are searched side by side
Selection = tuple[int, str, bool]  # see `GridCandidates.best`
InOrder = tuple[list[float], list[int], float]  # see `GridCandidates._in_order`
Best = list[tuple[float, PlacedGrid]]
BOUNDS, LOOK, WORDS = range(3)  # of grids: lower bounds; words of a few ranks; exact words
Wanted = tuple[Sequence[int] | Array, int]  # places of grids, and what of them is needed
Search = Generator[Wanted, dict[PerAxis, int] | None, Best]


class GridCandidates:
    """All grids of one layer class, sorted by a lower bound of their cost.

    Costs are words received by the most-receiving process, or seconds, as the request's objective says.
    input_rows: whether layers with weights may be cut by input rows. found: what `best` gives for selections.
    """

    def __init__(
        self,
        layer_class: LayerClass,
        request: NetworkRequest,
        followed: Between | None = None,
        distributions: GridDistributions | None = None,
        input_rows: bool = True,
    ) -> None:
        self.layer_class, self.request, self.nest = layer_class, request, layer_class.nest
        turns = input_rows and layer_class.weighted
        self.counted = CountedGrids(
            layer_class, request, turns and request.objective == "words", distributions
        )
        self.found: dict[Selection, Best] = {}
        grids = family(
            self.nest,
            request.procs,
            request.balance,
            request.exact_procs,
            uneven=request.exact_procs and layer_class.weighted,
            timed=request.objective == "time",
        )
        self.timed: TimedGrids | None = None
        if request.objective == "time":
            self.timed = TimedGrids(layer_class, request, grids, followed or Between(), turns)
            bounds = self.timed.least
        else:
            bounds = self.counted.bounds(grids)
        self.grids = GridTable(grids, bounds)
        self.counted.take(self.grids)

    # -- costs ---------------------------------------------------------------------------------------

    def cost(self, placed: PlacedGrid) -> float:
        """Exact words, or modelled seconds, of one placed grid. Results are cached."""
        if self.timed is not None:
            return self.timed.seconds(placed)
        return float(self.words_of(placed.grid))

    def words_of(self, grid: PerAxis) -> int:
        """Exact words of a grid. Those of many grids are counted faster by `counted_grids.count_words`."""
        if grid not in self.counted.words:
            count_words({self.counted: [grid]})
        return self.counted.words[grid]

    def cut(self, placed: PlacedGrid) -> PlacedGrid:
        """A grid cut by the rows that cost the least."""
        if self.timed is not None:
            return self.timed.cut(placed)
        self.words_of(placed.grid)
        return replace(placed, turned=self.counted.cut.get(placed.grid, ()))

    def placements(self, grid: PerAxis) -> list[PlacedGrid]:
        """A grid in its cheapest rank orders, cheapest first."""
        return sorted(map(self.cut, self.ordered(grid)), key=self.cost)[:ORDERS_PER_GRID]

    def ordered(self, grid: PerAxis) -> list[PlacedGrid]:
        """A grid in all rank orders that differ."""
        return [PlacedGrid(grid, order) for order in distinct_orders(grid, self.request.orders)]

    def placed(self, grids: Sequence[PerAxis]) -> list[PlacedGrid]:
        """Several grids in their cheapest rank orders. Their words are counted together."""
        if self.timed is None:
            count_words({self.counted: grids})
        return [placed for grid in grids for placed in self.placements(grid)]

    # -- selections of grids, lowest bound first ------------------------------------------------------

    @cached_property
    def _full_places(self) -> Array:
        """The places of the grids that use all processes."""
        return np.flatnonzero(self.grids.sizes == self.request.procs)

    @cached_property
    def by_weights(self) -> list[PerAxis]:
        """For every number of parts into which grids cut Ker, the grid with the lowest bound."""
        parts = parts_of(self.grids.rows)
        _, first = np.unique(parts.g * parts.c * parts.k, return_index=True)
        return self.grids.grids(np.sort(first))

    def with_x(self, x: PerAxis, count: int, axes: str = "") -> list[PerAxis]:
        """The first `count` grids that split b, d, h and w as `x` does, and no other axes than `axes`."""
        return self.grids.grids(self.grids.with_x(x, axes)[:count])

    # -- the cheapest grids ---------------------------------------------------------------------------

    def best(self, most: int, axes: str = "", full: bool = False) -> Best:
        """(cost, grid in its best order) of the `most` cheapest grids, cheapest first.

        axes: only grids that split no other axes; "" for all. full: only grids that use all processes.
        Words of a grid are counted only while its lower bound is below the worst cost that is kept.
        """
        key = most, axes, full
        if key not in self.found:
            more = [each for each in self.found if each[1:] == key[1:] and each[0] > most]
            if more:
                return self.found[more[0]][:most]
            search_together([self], [key])
        return self.found[key]

    def search(self, most: int, axes: str, full: bool) -> Search:
        """The search of `best`: gives the places of grids, and what of them it needs next."""
        if self.timed is not None:  # the bounds are exact
            grids = self.grids.grids(self._selected(axes, full)[:most]) or self._least_work_grids(axes)[:most]
            return [(self.grids.bound(grid), self.placements(grid)[0]) for grid in grids]
        shown = SHOWN
        yield self._selected(axes, full)[:shown], BOUNDS
        bounds, places, beyond = self._in_order(axes, full, shown)
        found: list[tuple[int, int]] = []  # words and place
        start, loose = 0, False  # whether words were far above bounds, so that a look at a few ranks helps
        while True:
            if len(found) >= most and (beyond if start == len(places) else bounds[start]) > found[-1][0]:
                break
            if start == len(places):
                if beyond == math.inf:
                    break
                shown *= 2
                yield self._selected(axes, full)[:shown], BOUNDS
                bounds, places, beyond = self._in_order(axes, full, shown)
                continue
            if len(found) >= most and (bounds[start], places[start]) > found[-1]:
                break
            need = most - len(found)
            if need > 0:
                stop = min(start + need, len(places))
            else:  # no grid that cannot be among the best
                stop = min(start + BY_KINDS, bisect_right(bounds, found[most - 1][0]))
            some = places[start:stop]
            if len(found) >= most and loose:
                seen = yield some, LOOK
                assert seen is not None
                grids = self.grids.grids(some)
                pairs = zip(some, grids, strict=True)
                some = [at for at, grid in pairs if (self._least_of(grid, seen), at) <= found[most - 1]]
            yield some, WORDS
            words = [self.counted.words[grid] for grid in self.grids.grids(some)]
            least = self.counted.least.at(some)
            loose = loose or bool((np.array(words) > LOOSE * least).any())
            found = sorted([*found, *zip(words, some, strict=True)])[:most]
            start = stop
        return [(float(words), self.cut(PlacedGrid(self.grids.grid(place)))) for words, place in found]

    def _least_of(self, grid: PerAxis, seen: dict[PerAxis, int]) -> int:
        """The words of a grid, or of one that was looked at what it receives at least."""
        words = self.counted.words.get(grid)
        return seen[grid] if words is None else words

    def _in_order(self, axes: str, full: bool, shown: int) -> InOrder:
        """(bounds, places) of the grids that split no other axes, or that are full; lowest bounds first.

        Of the first `shown` grids; and a number of words of which no other one receives fewer.
        """
        some = self._selected(axes, full)
        first, others = some[:shown], some[shown:]
        beyond = float(self.grids.bounds[others[0]]) if len(others) else math.inf
        self.counted.know(first)
        least = self.counted.least.at(first)
        order = np.argsort(least, kind="stable")
        order = order[: int(np.searchsorted(least[order], beyond))]
        return least[order].tolist(), first[order].tolist(), beyond

    def _selected(self, axes: str, full: bool) -> Array:
        """The places of the grids that split no other axes, or of those that are full."""
        return self._full_places if full else self.grids.within(axes or "".join(AXES))

    def _least_work_grids(self, axes: str) -> list[PerAxis]:
        """Grids with the least work per process that split only `axes`, and so leave processes idle."""
        fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in axes}
        grids = all_grids(Space(self.nest, self.request.procs, fixed, False), self.request.procs)
        least = min(self.nest.extents.blocks(grid).size for grid in grids)
        found = [g for g in grids if self.nest.extents.blocks(g).size <= least]
        if self.timed is not None:
            self.timed.add(placed for grid in found for placed in self.ordered(grid))
        self.grids.append({g: self.cost(self.placements(g)[0]) for g in found})
        return sorted(found, key=lambda g: (self.grids.bound(g), g))

    def known_least(self, below: float) -> Array:
        """By place: the words of a grid where they are counted, else what it receives at least.

        Bounds that are above `below` need not be the best known ones.
        """
        self.counted.know(self.counted.places_below(below))
        least, known = self.grids.bounds[: self.grids.size].copy(), self.counted.least.places
        least[known] = self.counted.least.at(known)
        for grid, words in self.counted.words.items():
            place = self.grids.places.get(grid, self.grids.size)
            if place < self.grids.size:
                least[place] = words
        return least

    def least_of(self, grid: PerAxis) -> float:
        """The words of a grid of the family where they are counted, else what it receives at least."""
        words = self.counted.words.get(grid)
        if words is not None:
            return float(words)
        place = self.grids.places[grid]
        self.counted.know(np.array([place]))
        return float(self.counted.least.at([place])[0])

    def proven_least(self) -> float:
        """The words of the grid that moves the fewest."""
        return self.best(1)[0][0]


class _Running:
    """A search of one class under way: the grids that it needs next, and what of them."""

    def __init__(self, candidates: GridCandidates, selection: Selection) -> None:
        self.candidates, self.selection = candidates, selection
        self.steps = candidates.search(*selection)
        self.places: Array = np.zeros(0, np.intp)
        self.needs, self.ended = BOUNDS, False
        self.go_on(None)

    def go_on(self, seen: dict[PerAxis, int] | None) -> None:
        """The next step, with the least words of the grids that the last one has asked for."""
        try:
            places, self.needs = self.steps.send(seen)
            self.places = np.asarray(places, np.intp)
        except StopIteration as end:
            self.candidates.found[self.selection] = end.value
            self.ended = True


def search_together(candidates: Sequence[GridCandidates], selections: Sequence[Selection]) -> None:
    """Find what `best` gives for some (number, axes, full) of several classes.

    Words are counted for all selections, and for many classes, together.
    """
    for first in range(0, len(candidates), CLASSES):
        some = candidates[first : first + CLASSES]
        running = [
            _Running(each, selection)
            for each in some
            for selection in selections
            if selection not in each.found
        ]
        while running := [search for search in running if not search.ended]:
            know_words(_places_of(running, BOUNDS))
            count_words(_grids_of(running, WORDS))
            seen = see_words(_grids_of(running, LOOK))
            for search in running:
                search.go_on(seen.get(search.candidates.counted))


def _places_of(running: Iterable[_Running], needs: int) -> dict[CountedGrids, Array]:
    """Class -> the places of grids of which its searches need something."""
    found: dict[CountedGrids, list[Array]] = {}
    for each in running:
        if each.needs == needs:
            found.setdefault(each.candidates.counted, []).append(each.places)
    return {counted: distinct(np.concatenate(some)) for counted, some in found.items()}


def _grids_of(running: Iterable[_Running], needs: int) -> dict[CountedGrids, list[PerAxis]]:
    return {each: each.grids.grids(places) for each, places in _places_of(running, needs).items()}


def x_grid(grid: PerAxis) -> PerAxis:
    """The processes along x alone: the part of a grid that neighbouring layers can have in common."""
    return PerAxis(b=grid.b, d=grid.d, h=grid.h, w=grid.w)
