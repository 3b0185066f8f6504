"""The grids that a class of layers can choose from, with lower bounds and exact costs.

`grid_family` lists the grids. `GridCandidates` sorts them by a lower bound of their cost and computes exact
costs on demand: received words by counting owned boxes. The seconds of all grids are computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from synth.layer.axes import AXES, SPATIAL, Axis, PerAxis
from synth.layer.passes import gathers, moves
from synth.machine.rank_groups import distinct_orders
from synth.network.planner.grid_family import family, largest_block
from synth.network.planner.layer_class import LayerClass
from synth.network.planner.owned_boxes import MAX_EXACT_RANKS, OwnedBoxes, PlacedGrid
from synth.network.planner.request import NetworkRequest
from synth.network.planner.timed_grids import TimedGrids
from synth.network.step_time.between import Between
from synth.schedule.distribution import Distribution
from synth.search.grid_ranges import shared_rows
from synth.search.grids import Space, all_grids

BATCH = 16  # grids whose words are counted together
ORDERS_PER_GRID = 2  # rank orders of one grid that become options
MAX_ELEMENTS = 1 << 18  # grids times ranks of one count


class GridCandidates:
    """All grids of one layer class, sorted by a lower bound of their cost.

    Costs are words received by the most-receiving process, or seconds, as the request's objective says.
    """

    def __init__(
        self, layer_class: LayerClass, request: NetworkRequest, followed: Between | None = None
    ) -> None:
        self.layer_class, self.request, self.nest = layer_class, request, layer_class.nest
        self.lower_bounds: dict[PerAxis, float] = {}
        self._words: dict[PerAxis, int] = {}
        self._turned: dict[PerAxis, tuple[Axis, ...]] = {}
        self._shared_rows: dict[tuple[str, int], int] = {}
        self._best: dict[tuple[int, str, bool], list[tuple[float, PlacedGrid]]] = {}
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
            self.timed = TimedGrids(layer_class, request, grids, followed or Between())
            bounds = self.timed.least()
        else:
            bounds = {grid: self._lower_bound(grid) for grid in grids}
        self.lower_bounds = dict(sorted(bounds.items(), key=lambda each: (each[1], each[0])))

    # -- costs ---------------------------------------------------------------------------------------

    def _lower_bound(self, grid: PerAxis) -> float:
        """A lower bound of the words of a grid: those of an average rank."""
        words, size = self.nest.words, grid.size
        inputs = words["In"] * (1 / (grid.x * grid.g * grid.c) - 1 / size)
        gathered = inputs if self.layer_class.transposed or self._turn(grid) else inputs + self._halo(grid)
        moved = self.layer_class.weighted and not self.request.resident_weights
        ker = words["Ker"] * (1 / (grid.g * grid.c * grid.k) - 1 / size) if moved else 0.0
        out = words["Out"] * (1 / (grid.x * grid.g * grid.k) - 1 / size)
        passes, saves = self.layer_class.passes(self.request.training), self.request.saves
        times_gathered, times = gathers(passes, saves)["In"], moves(passes, saves)
        received = times_gathered * gathered + (times["In"] - times_gathered) * inputs
        received += times["Ker"] * ker + times["Out"] * out
        return received * (1 - 1e-9)

    def _halo(self, grid: PerAxis) -> float:
        """A lower bound of the words of In that an average rank reads beyond its even part."""
        n, rows, read = self.nest.extents, 1, 1
        for axis in SPATIAL:
            window, parts = self.nest.windows[axis], getattr(grid, axis)
            if (axis, parts) not in self._shared_rows:
                self._shared_rows[axis, parts] = shared_rows(window, parts)
            rows, read = rows * window.size, read * (window.size + self._shared_rows[axis, parts])
        return n.b * n.g * n.c * max(0, read - rows) / (grid.x * grid.g * grid.c)

    def cost(self, placed: PlacedGrid) -> float:
        """Exact words, or modelled seconds, of one placed grid. Results are cached."""
        if self.timed is not None:
            return self.timed.seconds(placed)
        self._count([placed.grid])
        return float(self._words[placed.grid])

    def _count(self, grids: Sequence[PerAxis]) -> None:
        """Count the exact words of several grids together."""
        new = [grid for grid in grids if grid not in self._words]
        if new:
            placed = [PlacedGrid(grid) for grid in new]
            boxes = OwnedBoxes(self.nest, placed, self.request.procs, self.request.resident)
            passes = self.layer_class.passes(self.request.training)
            words, _ = boxes.words(passes, self.layer_class.weighted, self.request.saves)
            self._words.update(zip(new, map(int, words), strict=True))
            self._count_turned(new)

    def _count_turned(self, grids: Sequence[PerAxis]) -> None:
        """Cut by input rows where that moves fewer words and is no more work for any process."""
        passes = self.layer_class.passes(self.request.training)
        by_axes: dict[tuple[Axis, ...], list[PerAxis]] = {}
        for grid in grids:
            turned = self._turn(grid)
            if (
                turned
                and Distribution(self.nest.turn(turned), grid).load <= largest_block(self.nest, grid).size
            ):
                by_axes.setdefault(turned, []).append(grid)
        for turned, some in by_axes.items():
            boxes = OwnedBoxes(self.nest.turn(turned), list(map(PlacedGrid, some)), self.request.procs)
            words, _ = boxes.words(passes, self.layer_class.weighted, self.request.saves)
            for grid, fewer in zip(some, map(int, words), strict=True):
                if fewer < self._words[grid]:
                    self._words[grid], self._turned[grid] = fewer, turned

    def _turn(self, grid: PerAxis) -> tuple[Axis, ...]:
        """The axes that may be turned on a grid: all that it cuts, or none.

        Only the words of layers with weights are counted for such cuts, without a limit of the memory.
        """
        request = self.request
        if request.objective != "words" or request.resident_weights or request.limit_bytes is not None:
            return ()
        axes = self.nest.turnable if self.layer_class.weighted else ()
        sizes = {axis: self.nest.windows[axis].size for axis in axes}
        return tuple(axis for axis in axes if 1 < getattr(grid, axis) <= sizes[axis])

    def turned(self, placed: PlacedGrid) -> PlacedGrid:
        """A placed grid with the turned axes for which `cost` counts."""
        self.cost(placed)
        return replace(placed, turned=self._turned.get(placed.grid, ()))

    def placements(self, grid: PerAxis) -> list[PlacedGrid]:
        """A grid in its cheapest rank orders, cheapest first."""
        return sorted(self._ordered(grid), key=self.cost)[:ORDERS_PER_GRID]

    def _ordered(self, grid: PerAxis) -> list[PlacedGrid]:
        return [PlacedGrid(grid, order) for order in distinct_orders(grid, self.request.orders)]

    def placed(self, grids: Sequence[PerAxis]) -> list[PlacedGrid]:
        """Several grids in their cheapest rank orders. Their words are counted together."""
        if self.request.objective == "words":
            self._count(grids)
        return [placed for grid in grids for placed in self.placements(grid)]

    # -- selections of grids, lowest bound first ------------------------------------------------------

    @cached_property
    def full(self) -> list[PerAxis]:
        """The grids that use all processes."""
        return [grid for grid in self.lower_bounds if grid.size == self.request.procs]

    @cached_property
    def by_split_axes(self) -> dict[frozenset[str], list[PerAxis]]:
        """Set of split axes -> the grids that split exactly these axes."""
        found: dict[tuple[bool, ...], list[PerAxis]] = {}
        for grid in self.lower_bounds:
            found.setdefault(tuple([n > 1 for n in grid]), []).append(grid)
        return {
            frozenset(axis for axis, cut in zip(AXES, split, strict=True) if cut): grids
            for split, grids in found.items()
        }

    @cached_property
    def by_weights(self) -> dict[int, PerAxis]:
        """Parts into which a grid cuts Ker -> the grid with the lowest bound that does."""
        found: dict[int, PerAxis] = {}
        for grid in self.lower_bounds:
            found.setdefault(grid.g * grid.c * grid.k, grid)
        return found

    @cached_property
    def by_x_grid(self) -> dict[PerAxis, list[PerAxis]]:
        """Processes along x = (b, d, h, w) -> the grids that have these."""
        found: dict[PerAxis, list[PerAxis]] = {}
        for grid in self.lower_bounds:
            found.setdefault(x_grid(grid), []).append(grid)
        return found

    def within(self, axes: str) -> list[PerAxis]:
        """The grids that split no other axes than `axes`."""
        if set(axes) == set(AXES):
            return list(self.lower_bounds)
        splits = self.by_split_axes.items()
        found = [grid for split, grids in splits if split <= set(axes) for grid in grids]
        return sorted(found, key=lambda grid: (self.lower_bounds[grid], grid))

    # -- the cheapest grids ---------------------------------------------------------------------------

    def best(self, count: int, axes: str = "", full: bool = False) -> list[tuple[float, PlacedGrid]]:
        """(cost, grid in its best order) of the `count` cheapest grids, cheapest first.

        axes: only grids that split no other axes; "" for all. full: only grids that use all processes.
        Words of a grid are counted only while its lower bound is below the worst cost that is kept.
        """
        key = count, axes, full
        if key not in self._best:
            self._best[key] = self._search(count, axes, full)
        return self._best[key]

    def _search(self, count: int, axes: str, full: bool) -> list[tuple[float, PlacedGrid]]:
        found: list[tuple[float, int, PlacedGrid]] = []
        grids = self.full if full else self.within(axes or "".join(AXES))
        if not grids and self.request.objective == "time":
            grids = self._least_work_grids(axes)
        if self.timed is not None:  # the bounds are exact
            return [(self.lower_bounds[grid], self.placements(grid)[0]) for grid in grids[:count]]
        batch = max(1, min(BATCH, MAX_ELEMENTS // min(self.request.procs, MAX_EXACT_RANKS)))
        for start in range(0, len(grids), batch):
            if len(found) >= count and self.lower_bounds[grids[start]] > found[count - 1][0]:
                break
            some = grids[start : start + batch]
            self._count(some)
            found += [(self.cost(PlacedGrid(g)), start + i, PlacedGrid(g)) for i, g in enumerate(some)]
            found.sort(key=lambda each: each[:2])
        return [(cost, placed) for cost, _, placed in found[:count]]

    def _least_work_grids(self, axes: str) -> list[PerAxis]:
        """Grids with the least work per process that split only `axes`, and so leave processes idle."""
        fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in axes}
        grids = all_grids(Space(self.nest, self.request.procs, fixed, False), self.request.procs)
        least = min(largest_block(self.nest, grid).size for grid in grids)
        found = [g for g in grids if largest_block(self.nest, g).size <= least]
        if self.timed is not None:
            self.timed.add(placed for grid in found for placed in self._ordered(grid))
        self.lower_bounds |= {g: min(map(self.cost, self._ordered(g))) for g in found}
        return sorted(found, key=lambda g: (self.lower_bounds[g], g))

    def proven_least(self) -> float:
        """The words of the grid that moves the fewest."""
        return self.best(1)[0][0]


def x_grid(grid: PerAxis) -> PerAxis:
    """The processes along x alone: the part of a grid that neighbouring layers can have in common."""
    return grid._replace(g=1, c=1, k=1)
