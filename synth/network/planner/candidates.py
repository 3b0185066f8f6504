"""The grids that a class of layers can choose from, with lower bounds and exact costs.

`grid_family` lists the grids. `GridCandidates` sorts them by a lower bound of their cost and computes exact
costs on demand: received words by counting owned boxes. The seconds of all grids are computed at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from synth.layer.axes import AXES, TENSORS, Axis, PerAxis, Tensor
from synth.machine.rank_groups import distinct_orders
from synth.network.grids.grid_family import family, largest_block
from synth.network.grids.grid_table import GridTable, parts_of
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import (
    GridDistributions,
    OwnedBoxes,
    PlacedGrid,
)
from synth.network.grids.rank_kinds import few_ranks, padded, ranks_of_kinds
from synth.network.grids.word_bounds import least_words, mean_words
from synth.network.planner.timed_grids import TimedGrids
from synth.network.request import NetworkRequest
from synth.network.step_time.between import Between
from synth.schedule.distribution import Distribution
from synth.schedule.ownership import Array
from synth.search.grids import Space, all_grids

BY_KINDS = 32  # grids whose words are counted together on one rank of every kind
ORDERS_PER_GRID = 2  # rank orders of one grid that become options
LOOSE = 1.05  # a bound that so many times it is less than the words is loose
FEW_KINDS = 64  # grids with so many kinds of ranks are counted apart from those with more
TOGETHER = 1 << 15  # unless grids times the most kinds are so few
Selection = tuple[int, str, bool]  # see `GridCandidates.best`
Best = list[tuple[float, PlacedGrid]]
RanksOf = Callable[[PlacedGrid, Distribution, Sequence[Tensor]], Array]
Asked = tuple[list[int], bool]  # places of grids; whether their exact words are needed, or bounds


class GridCandidates:
    """All grids of one layer class, sorted by a lower bound of their cost.

    Costs are words received by the most-receiving process, or seconds, as the request's objective says.
    input_rows: whether layers with weights may be cut by input rows.
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
        self.input_rows = input_rows and request.objective == "words" and layer_class.weighted
        self._distributions = (
            GridDistributions(self.nest, request.resident) if distributions is None else distributions
        )
        self._words: dict[PerAxis, int] = {}
        self._seen: dict[PerAxis, int] = {}
        self._turned: dict[PerAxis, tuple[Axis, ...]] = {}
        self._of_turned = {
            turned: GridDistributions(self.nest.turn(turned), request.resident) for turned in self._turns
        }
        self._ordered_places: dict[tuple[str, bool], tuple[list[float], list[int]]] = {}
        self._best: dict[Selection, Best] = {}
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
            turns = input_rows and layer_class.weighted
            self.timed = TimedGrids(layer_class, request, grids, followed or Between(), turns)
            bounds = self.timed.least
        else:
            bounds = self._bounds(grids)
        self.grids = GridTable(grids, bounds)

    # -- costs ---------------------------------------------------------------------------------------

    def _bounds(self, grids: Array) -> Array:
        """Lower bounds of the words of some grids, in closed form. They rank the grids."""
        parts = parts_of(grids)
        return mean_words(self.layer_class, self.request, parts, self._turnable(parts))

    def _turnable(self, parts: PerAxis) -> Any:
        """Whether each of some grids cuts an axis that may be turned."""
        found = np.zeros(np.shape(parts.b), dtype=bool)
        for axis in {axis for turned in self._turns for axis in turned}:
            found |= self._may_turn(axis, getattr(parts, axis))
        return found

    @cached_property
    def _least(self) -> Array:
        """By place: lower bounds of the words of a grid, however it is cut."""
        plain = least_words(self.nest, self.layer_class, self.request, self.grids.parts)
        least: Array = np.minimum.reduce([plain, *self._least_turned.values()])
        return least

    @cached_property
    def _least_turned(self) -> dict[tuple[Axis, ...], Array]:
        """Turned axes -> by place, lower bounds of the words of a grid; endless where not cut so."""
        parts, found = self.grids.parts, {}
        for turned in self._turns:
            cut = np.logical_and.reduce([self._may_turn(axis, getattr(parts, axis)) for axis in turned])
            least, some = np.full(len(cut), np.iinfo(np.int64).max), np.flatnonzero(cut)
            if len(some):
                few = parts_of(self.grids.rows[some])
                least[some] = least_words(self.nest.turn(turned), self.layer_class, self.request, few)
            found[turned] = least
        return found

    def cost(self, placed: PlacedGrid) -> float:
        """Exact words, or modelled seconds, of one placed grid. Results are cached."""
        if self.timed is not None:
            return self.timed.seconds(placed)
        if placed.grid not in self._words:
            self.count([placed.grid])
        return float(self._words[placed.grid])

    def count(self, grids: Sequence[PerAxis]) -> None:
        """Count the exact words of several grids together."""
        new = [grid for grid in grids if grid not in self._words]
        for grid, (words, turned) in self._fewest(new, ranks_of_kinds).items():
            self._words[grid] = words
            if turned:
                self._turned[grid] = turned

    def _look_at(self, grids: Sequence[PerAxis]) -> None:
        """Find the words that some grids receive at least: those of a few of their ranks."""
        new = [grid for grid in grids if grid not in self._words and grid not in self._seen]
        self._seen.update({grid: words for grid, (words, _) in self._fewest(new, few_ranks).items()})

    def _fewest(
        self, grids: Sequence[PerAxis], ranks_of: RanksOf
    ) -> dict[PerAxis, tuple[int, tuple[Axis, ...]]]:
        """Grid -> the words that some of its ranks receive at most, and the turned axes with which they do.

        An axis is cut by input rows where that moves fewer words and is no more work for any process.
        """
        counted = self._counted(self._distributions, grids, ranks_of)
        found: dict[PerAxis, tuple[int, tuple[Axis, ...]]] = {}
        found |= {grid: (words, ()) for grid, words in zip(grids, counted, strict=True)}
        for turned in self._turns:
            some = [grid for grid in grids if self._pays(grid, turned, found[grid][0])]
            counted = self._counted(self._of_turned[turned], some, ranks_of)
            found.update({g: (n, turned) for g, n in zip(some, counted, strict=True) if n < found[g][0]})
        return found

    def _pays(self, grid: PerAxis, turned: tuple[Axis, ...], words: int) -> bool:
        """Whether a grid with these turned axes may receive fewer words, with no more work for any rank."""
        place = self.grids.places.get(grid)
        if place is None:  # outside the family
            if not all(self._may_turn(axis, getattr(grid, axis)) for axis in turned):
                return False
        elif self._least_turned[turned][place] >= words:
            return False
        return self._of_turned[turned][grid].load <= largest_block(self.nest, grid).size

    def _counted(
        self, of_grids: GridDistributions, grids: Sequence[PerAxis], ranks_of: RanksOf = ranks_of_kinds
    ) -> list[int]:
        """The words of some grids, counted on some ranks: by default one of every kind."""
        if not grids:
            return []
        placed = list(map(PlacedGrid, grids))
        distributions = [of_grids[grid] for grid in grids]
        tensors: tuple[Tensor, ...] = TENSORS if self.layer_class.weighted else ("In", "Out")
        kinds = [ranks_of(*each, tensors) for each in zip(placed, distributions, strict=True)]
        few = [len(ranks) <= FEW_KINDS for ranks in kinds]
        if len(grids) * max(map(len, kinds)) <= TOGETHER:
            few = [True] * len(grids)
        found = [0] * len(grids)
        for some in (np.flatnonzero(few), np.flatnonzero(np.logical_not(few))):
            if len(some):
                boxes = OwnedBoxes(
                    of_grids.nest,
                    [placed[i] for i in some],
                    self.request.procs,
                    distributions=[distributions[i] for i in some],
                    ranks=padded([kinds[i] for i in some]),
                )
                passes = self.layer_class.passes(self.request.training)
                words, _ = boxes.words(passes, self.layer_class.weighted, self.request.saves)
                for i, number in zip(some, words.tolist(), strict=True):
                    found[i] = number
        return found

    @cached_property
    def _turns(self) -> list[tuple[Axis, ...]]:
        """The sets of axes that may be turned, the largest first."""
        axes = self.nest.turnable if self.input_rows else ()
        return [turned for count in range(len(axes), 0, -1) for turned in combinations(axes, count)]

    def _may_turn(self, axis: Axis, parts: Any) -> Any:
        """Whether an axis that is cut into so many parts may be turned."""
        return (parts > 1) & (parts <= self.nest.windows[axis].size)

    def cut(self, placed: PlacedGrid) -> PlacedGrid:
        """A grid cut by the rows that cost the least."""
        if self.timed is not None:
            return self.timed.cut(placed)
        self.cost(placed)
        return replace(placed, turned=self._turned.get(placed.grid, ()))

    def placements(self, grid: PerAxis) -> list[PlacedGrid]:
        """A grid in its cheapest rank orders, cheapest first."""
        return sorted(map(self.cut, self.ordered(grid)), key=self.cost)[:ORDERS_PER_GRID]

    def ordered(self, grid: PerAxis) -> list[PlacedGrid]:
        """A grid in all rank orders that differ."""
        return [PlacedGrid(grid, order) for order in distinct_orders(grid, self.request.orders)]

    def placed(self, grids: Sequence[PerAxis]) -> list[PlacedGrid]:
        """Several grids in their cheapest rank orders. Their words are counted together."""
        if self.request.objective == "words":
            self.count(grids)
        return [placed for grid in grids for placed in self.placements(grid)]

    # -- selections of grids, lowest bound first ------------------------------------------------------

    @cached_property
    def _full_places(self) -> Array:
        """The places of the grids that use all processes."""
        return np.flatnonzero(self.grids.sizes == self.request.procs)

    @cached_property
    def by_weights(self) -> list[PerAxis]:
        """For every number of parts into which grids cut Ker, the grid with the lowest bound."""
        g, c, k = (self.grids.rows[:, AXES.index(axis)] for axis in ("g", "c", "k"))
        _, first = np.unique(g * c * k, return_index=True)
        return self.grids.grids(np.sort(first))

    def with_x(self, x: PerAxis, count: int, axes: str = "") -> list[PerAxis]:
        """The first `count` grids that split b, d, h and w as `x` does, and no other axes than `axes`."""
        return self.grids.grids(self.grids.with_x(x, axes)[:count])

    # -- the cheapest grids ---------------------------------------------------------------------------

    def best(self, count: int, axes: str = "", full: bool = False) -> Best:
        """(cost, grid in its best order) of the `count` cheapest grids, cheapest first.

        axes: only grids that split no other axes; "" for all. full: only grids that use all processes.
        Words of a grid are counted only while its lower bound is below the worst cost that is kept.
        """
        key = count, axes, full
        if key not in self._best:
            self.search_together([key])
        return self._best[key]

    def search_together(self, selections: Iterable[Selection]) -> None:
        """Find what `best` gives for some (count, axes, full), and count words for all of them together."""
        running = {each: self._search(*each) for each in selections if each not in self._best}
        while running:
            counted, seen = set[int](), set[int]()
            for selection, search in list(running.items()):
                try:
                    places, exact = next(search)
                    (counted if exact else seen).update(places)
                except StopIteration as end:
                    self._best[selection] = end.value
                    del running[selection]
            self.count(self.grids.grids(sorted(counted)))
            self._look_at(self.grids.grids(sorted(seen)))

    def _search(self, count: int, axes: str, full: bool) -> Generator[Asked, None, Best]:
        """The search of `best`: gives the places of the grids whose words it needs next."""
        if self.timed is not None:  # the bounds are exact
            kept = self._full_places if full else self.grids.within(axes or "".join(AXES))
            grids = self.grids.grids(kept[:count]) or self._least_work_grids(axes)[:count]
            return [(self.grids.bound(grid), self.placements(grid)[0]) for grid in grids]
        bounds, places = self._in_order(axes, full)
        found: list[tuple[int, int]] = []  # words and place
        start, loose = 0, False  # whether words were far above bounds, so that a look at a few ranks helps
        while start < len(places):
            if len(found) >= count and (bounds[start], places[start]) > found[count - 1]:
                break
            need = count - len(found)
            if need > 0:
                stop = start + need
            else:  # no grid that cannot be among the best
                stop = min(start + BY_KINDS, bisect_right(bounds, found[count - 1][0]))
            some = places[start:stop]
            if len(found) >= count and loose:
                yield some, False
                some = [place for place in some if (self._least_of(place), place) <= found[count - 1]]
            yield some, True
            words = [self._words[grid] for grid in self.grids.grids(some)]
            least = self._least[some]
            loose = loose or bool((np.array(words) > LOOSE * least).any())
            found = sorted([*found, *zip(words, some, strict=True)])[:count]
            start = stop
        return [(float(words), self.cut(PlacedGrid(self.grids.grid(place)))) for words, place in found]

    def _least_of(self, place: int) -> int:
        """The words of a grid that was looked at, or what it receives at least."""
        grid = self.grids.grid(place)
        return self._words[grid] if grid in self._words else self._seen[grid]

    def _in_order(self, axes: str, full: bool) -> tuple[list[float], list[int]]:
        """(bounds, places) of the grids that split no other axes, or that are full; lowest bounds first."""
        key = axes, full
        if key not in self._ordered_places:
            some = self._full_places if full else self.grids.within(axes or "".join(AXES))
            least = self._least[some]
            order = np.argsort(least, kind="stable")
            self._ordered_places[key] = least[order].tolist(), some[order].tolist()
        return self._ordered_places[key]

    def _least_work_grids(self, axes: str) -> list[PerAxis]:
        """Grids with the least work per process that split only `axes`, and so leave processes idle."""
        fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in axes}
        grids = all_grids(Space(self.nest, self.request.procs, fixed, False), self.request.procs)
        least = min(largest_block(self.nest, grid).size for grid in grids)
        found = [g for g in grids if largest_block(self.nest, g).size <= least]
        if self.timed is not None:
            self.timed.add(placed for grid in found for placed in self.ordered(grid))
        self.grids.append({g: self.cost(self.placements(g)[0]) for g in found})
        return sorted(found, key=lambda g: (self.grids.bound(g), g))

    @property
    def known_least(self) -> Array:
        """By place: the words of a grid where they are counted, else what it receives at least."""
        least = self._least.astype(np.float64)
        for grid, words in self._words.items():
            place = self.grids.places.get(grid, self.grids.size)
            if place < self.grids.size:
                least[place] = words
        return least

    def least_of(self, grid: PerAxis) -> float:
        """The words of a grid of the family where they are counted, else what it receives at least."""
        words = self._words.get(grid)
        return float(self._least[self.grids.places[grid]] if words is None else words)

    def proven_least(self) -> float:
        """The words of the grid that moves the fewest."""
        return self.best(1)[0][0]


def x_grid(grid: PerAxis) -> PerAxis:
    """The processes along x alone: the part of a grid that neighbouring layers can have in common."""
    return PerAxis(b=grid.b, d=grid.d, h=grid.h, w=grid.w)
