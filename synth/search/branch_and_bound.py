"""Exact integer search for the grid, stationary tensors and tiles with the fewest received words.

Best-first branch and bound. The queue is ordered by a lower bound of the words. The search takes the first
candidate and refines it to the next kind:

    Range          a set of grids; the bound is that of the average process; split into two halves
    PerAxis        one grid with the same bound
    Footprints     the same grid with some turned axes; the bound is that of a few heavily loaded processes
    Optimum        the grid and turned axes with their best pass plans and their exact words

The first `Optimum` that the search takes is the result. Among grids with equal words, the first in the order
of `grid_ranges.key_of` is taken.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

from synth.base.doors import either, option
from synth.base.errors import InfeasibleError
from synth.layer.axes import Axis, PerAxis
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.search.bounds.grid_bounds import GridBounds
from synth.search.bounds.range_words import Floors
from synth.search.effort import PATIENCE, TILED, Effort
from synth.search.grid_ranges import Key, Range, Ranges
from synth.search.grids import Space, no_grid, work_cap
from synth.search.lean_grids import STEPS, Lean, Leanest, leanest
from synth.search.pass_tilings import Tally, choose_tiling, footprints_of
from synth.search.request import Optimum, Request
from synth.search.tiling_search import TilingChoice
from synth.search.training_step import choose_training_tilings

LEAN_TILED = 20  # of the grids that the search for the least memory finds to fit, so many are tiled


# (lower bound of the words, key among equal bounds, order of insertion, state)
Candidate = tuple[int, Key, int, "Range | PerAxis | Footprints | Optimum"]


def search(request: Request) -> Optimum:
    """The optimum of a request.

    Raises `InfeasibleError` if no grid exists or no plan fits the memory. In the second case the message
    names the least memory that is enough.
    """
    search_ = _Search(request)
    found = search_.run()
    if found is None:
        raise search_.infeasible()
    return found


def search_or_error(
    request: Request,
) -> tuple[Optimum | None, int | None, Callable[[bool], InfeasibleError]]:
    """(The optimum, or None; words as of `search_or_floor`; the error that `search` raises).

    The error is told whether everything else that the user allows is proven not to fit.
    """
    search_ = _Search(request)
    return search_.run(), search_.effort.left_words, search_.infeasible


def search_or_none(request: Request) -> Optimum | None:
    """The optimum of a request, or None. Faster than `search` if no plan fits."""
    return search_or_floor(request)[0]


def search_or_floor(request: Request, lean_steps: int = STEPS) -> tuple[Optimum | None, int | None]:
    """(The optimum of a request, or None; words that no plan left out goes below, None if none was).

    lean_steps: the effort to find a grid that fits, if the search ends without one.
    """
    search_ = _Search(request, PATIENCE // 10, lean_steps)
    found = search_.run() if search_.space.least_work is not None else None
    return found, search_.effort.left_words


def search_several(request: Request, count: int) -> list[Optimum]:
    """The best plans on `count` grids, fewest words first; fewer where there are no more.

    Shorter than `search`: a search that ends early leaves out grids that it has not proven to be worse.
    """
    search_ = _Search(request, PATIENCE // 10, lean_steps=0, count=count)
    if search_.space.least_work is not None:
        search_.run()
    return list(search_.taken.values())


class _Search:
    """One run of the search. `patience`: see `effort`; `lean_steps`: see `lean_grids`.

    count: grids after whose optima it ends; `taken` has them.
    """

    def __init__(
        self, request: Request, patience: int = PATIENCE, lean_steps: int = STEPS, count: int = 1
    ) -> None:
        self.count, self.taken = count, dict[PerAxis, Optimum]()
        self.request, self.nest, self.procs = request, request.nest, request.procs
        self.space = Space(request.nest, request.procs, request.fixed, request.exact)
        self.floors: dict[Range, Floors] = {}  # of the ranges in the queue
        self.insertions = itertools.count()
        self.tally = Tally()
        self.effort = Effort(patience, request.pass_ == "training")
        self.lean_steps = lean_steps

    @cached_property
    def cap(self) -> int:
        """The most iterations of a process."""
        if self.request.most_work is not None:
            return self.request.most_work
        return work_cap(self._least_work(), self.request.balance)

    @cached_property
    def ranges(self) -> Ranges:
        """The ranges of all grids."""
        return Ranges(self.space, self.cap, self.request.turnable)

    @cached_property
    def bounds(self) -> GridBounds:
        """Lower bounds of the words of grids that may fit the limit."""
        return GridBounds(self.request, self.ranges, self.effort)

    def _least_work(self) -> int:
        least = self.space.least_work
        if least is None:
            raise no_grid(self.space)
        return least

    def run(self) -> Optimum | None:
        """The optimum, or None if no grid fits the memory."""
        found = self._run()
        floor = self.effort.left_words
        if found is None or floor is None or floor >= found.tiling.words:
            return found
        return replace(found, proven_words=floor)

    def _run(self) -> Optimum | None:
        least, queue = self._least_work(), list[Candidate]()
        limit, effort = self.request.limit_words, self.effort
        best: Optimum | None = None
        beaten = False  # whether a grid fits, but moves too many words
        if whole := self.ranges.whole():
            self._push(queue, whole, {})
        while queue:
            bound, key, _, state = heapq.heappop(queue)
            if self.request.fewer_than is not None and bound >= self.request.fewer_than:
                return None
            if effort.ends and not isinstance(state, Optimum):
                effort.leave(bound)
                if best is not None:
                    return best
                break
            match state:
                case Range():
                    self._halve(queue, state)
                case PerAxis():
                    self._turn(queue, state, key)
                case Footprints():
                    tiling, needed = self._choose_tiling(state, limit, self._most_words(best), limit)
                    effort.tile(state.grid.size, self.tally.examined)
                    self.tally.examined = 0
                    if limit is not None and needed > limit:
                        self.bounds.note_unfit(state.distribution, needed)
                    elif tiling is not None:
                        nest, load = state.nest, state.distribution.load
                        found = Optimum(state.grid, tiling, load, least, nest.turned, nest.classes)
                        if best is None or tiling.words < best.tiling.words:
                            best = found
                        heapq.heappush(queue, (tiling.words, key, next(self.insertions), found))
                    else:
                        beaten = beaten or limit is None or needed > 0
                case Optimum():
                    self.taken.setdefault(state.grid, state)
                    if len(self.taken) == self.count:
                        return next(iter(self.taken.values()))
        return self._leanest_optimum(least) if effort.left_words is not None and not beaten else None

    def _halve(self, queue: list[Candidate], each: Range) -> None:
        """Insert the halves of a range. Since it was inserted itself, more may be assumed."""
        floors = self.floors.pop(each, {})
        if not self.effort.assumes or self.bounds.fewest(each, floors) is not None:
            for half in self.ranges.halves(each):
                self._push(queue, half, floors)

    def _turn(self, queue: list[Candidate], grid: PerAxis, key: Key) -> None:
        """Insert a grid with each choice of turned axes that may fit."""
        for turned in self._turns(grid):
            floors: Floors = dict.fromkeys(self.bounds.choices([turned]), 0)
            fewest = self.bounds.fewest(grid, floors)
            if fewest is not None:
                self._push_turned(queue, grid, key, turned, fewest, floors)

    def _most_words(self, best: Optimum | None) -> int | None:
        """The words with which a grid is still of use."""
        if best is not None and self.count == 1:
            return best.tiling.words
        return None if self.request.fewer_than is None else self.request.fewer_than - 1

    def _leanest_optimum(self, least: int) -> Optimum | None:
        """The best of a few grids that fit: those that the search for the least memory has met."""
        limit, moves = self.request.limit_words, self.request.moves
        fitting = [(grid, turned) for words, grid, turned in self.leanest.met if words <= (limit or 0)]
        bounds = [(self.ranges.grid_bound(grid, moves, turned), grid, turned) for grid, turned in fitting]
        best: Optimum | None = None
        for bound, grid, turned in sorted(bounds)[:LEAN_TILED]:
            most = None if best is None else best.tiling.words - 1
            if most is not None and bound > most:
                break
            footprints = self._footprints(grid, turned)
            tiling, _ = self._choose_tiling(footprints, limit, most, limit)
            if tiling is not None:
                load = footprints.distribution.load
                best = Optimum(grid, tiling, load, least, turned, self.nest.classes)
        return best

    def _turns(self, grid: PerAxis) -> Iterator[tuple[Axis, ...]]:
        """The choices of turned axes on a grid whose blocks have no more work than the cap."""
        for turned in self.ranges.turns(grid, self.request.turned):
            nest = self.nest.turn(turned)
            cut = all(getattr(grid, axis) <= getattr(nest.extents, axis) for axis in turned)
            if not turned or (cut and Distribution(nest, grid).load <= self.cap):
                yield turned

    def _footprints(self, grid: PerAxis, turned: tuple[Axis, ...]) -> Footprints:
        return footprints_of(Distribution(self.nest.turn(turned), grid, ghosts=self.request.ghosts))

    def _push_turned(
        self,
        queue: list[Candidate],
        grid: PerAxis,
        key: Key,
        turned: tuple[Axis, ...],
        fewest: int,
        floors: Floors,
    ) -> None:
        """Insert a grid with some turned axes into the queue; among equal words, fewer are taken.

        A grid whose shards and slices alone are over the limit is left out. `fewest`: a bound of its words;
        `floors`: of each choice of reused tensors.
        """
        footprints = self._footprints(grid, turned)
        bound = self.bounds.of_grid(footprints, floors)
        if bound is not None:
            number = next(self.insertions)
            heapq.heappush(queue, (max(bound, fewest), (*key[:3], len(turned)), number, footprints))

    def _push(self, queue: list[Candidate], each: Range, known: Floors) -> None:
        """Insert a range into the queue, or its grid if it has only one, unless none of its grids fits.

        known: the floors of a range that contains it.
        """
        self.effort.steps += 1
        if self.request.limit_words is None:
            bound = self.ranges.bound(each, self.request.moves, self.request.turned)
        else:
            choices = self.bounds.choices(self.ranges.turns(self.ranges.grid(each.last), self.request.turned))
            floors = {choice: known.get(choice, 0) for choice in choices}
            fewest = self.bounds.fewest(each, floors)
            if fewest is None:
                return
            bound, self.floors[each] = fewest, floors
        state: PerAxis | Range = self.ranges.grid(each.first) if each.single else each
        heapq.heappush(queue, (bound, self.ranges.key(each), next(self.insertions), state))

    @cached_property
    def leanest(self) -> Leanest:
        """The grid with the least memory, as far as that is known."""

        def memory_bound(each: Range) -> int:
            within = self.bounds.within(each)
            return min(map(within.memory, self.ranges.turns(within.most, self.request.turned)))

        def needed(grid: PerAxis, enough: int | None) -> list[Lean]:
            turns = [(turned, self._footprints(grid, turned)) for turned in self._turns(grid)]
            return [(self._choose_tiling(each, 0, enough=enough)[1], grid, turned) for turned, each in turns]

        limit = self.request.limit_words or 0
        return leanest(self.ranges, memory_bound, needed, limit, TILED[self.effort.training], self.lean_steps)

    def _choose_tiling(
        self,
        footprints: Footprints,
        limit_words: int | None,
        most_words: int | None = None,
        enough: int | None = None,
    ) -> tuple[TilingChoice | None, int]:
        request, distribution = self.request, footprints.distribution
        if request.pass_ == "training":
            return choose_training_tilings(
                distribution,
                request.stationary,
                limit_words,
                panels=request.panels,
                transposed=request.transposed,
                gradients=request.gradients,
                most_words=most_words,
                enough=enough,
                footprints=footprints,
                tally=self.tally,
            )
        return choose_tiling(
            distribution,
            request.stationary,
            limit_words,
            PassPlan(pass_=request.pass_),
            request.panels,
            most_words,
            enough,
            footprints,
            self.tally,
        )

    def infeasible(self, proven: bool = True) -> InfeasibleError:
        """The error that says why no grid fits, the least memory that is enough, and what is not proven."""
        limit_words = self.request.limit_words
        if limit_words is None or self.leanest.best is None:
            return InfeasibleError(
                f"no grid of at most {self.procs} processes loads every process with at most {self.cap} "
                f"iterations; {either(('raise {}', 'balance'), ('free a part of {}', 'grid'))}"
            )
        size, needed = self.nest.word_bytes, self.leanest.best[0]
        most = "" if self.leanest.sure and not self.request.divided else "at most "
        proven = proven and (self.effort.left_words is None or self.leanest.floor > limit_words)
        so_far = "" if proven else ", as far as the search went: it ended early, so this is not proven"
        fault = InfeasibleError(
            f"no plan for {self.procs} processes fits {limit_words * size} bytes per process{so_far}; "
            f"the least memory that fits is {most}{needed * size} bytes ({option('memory', needed * size)})"
        )
        fault.proven = proven
        return fault
