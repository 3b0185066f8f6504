"""Exact integer search for the grid, stationary tensors and tiles with the fewest received words.

Best-first branch and bound. The queue is ordered by a lower bound of the words. The search takes the first
candidate and refines it to the next kind:

    Range          a set of grids; the bound is that of the average process; split into two halves
    PerAxis        one grid with the same bound
    Distribution   the same grid with some turned axes; the bound is that of a few heavily loaded processes
    Optimum        the grid and turned axes with their best pass plans and their exact words

The first `Optimum` that the search takes is the result. Among grids with equal words, the first in the order
of `grid_ranges.key_of` is taken.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from synth.base.errors import InfeasibleError
from synth.base.work_balance import BALANCE
from synth.layer.axes import Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, Passes, Task, moves, sequences
from synth.layer.residue_classes import Classes
from synth.schedule.distribution import Distribution
from synth.schedule.memory_bound import LeastMemory
from synth.schedule.pass_plan import PassPlan
from synth.search.grid_ranges import Key, Range, Ranges
from synth.search.grids import Space, no_grid, work_cap
from synth.search.heavy_processes import heavy_words
from synth.search.pass_tilings import choose_tiling
from synth.search.tiling_search import TilingChoice
from synth.search.training_step import choose_training_tilings

STATIONARY: tuple[Tensor, ...] = ("Out", "In", "Ker")
# Limits of the effort. A step is the examination of one range of grids.
MOST_TILED, PROCS_PER_TILED = 20_000, 2_000  # grids to tile before the search takes the best one so far;
# a grid counts once, and once more for each `PROCS_PER_TILED` processes
PATIENCE = (
    20_000  # steps until the search assumes that similar grids do not fit; it ends after 3 times as many
)
STEPS = 20_000  # steps of the search for the least memory
LEAN_TILED = 20  # of the grids that it finds to fit, so many are tiled
DIVE = 128  # that search descends from every 128th range directly to one grid
TILING_STEPS, TRAINING_STEPS = 20, 200  # steps that the tiling of one grid counts as


@dataclass(frozen=True)
class Request:
    """A search request. `limit_words` is the memory per process, `fixed` the pinned axes of the grid."""

    nest: Nest
    procs: int
    limit_words: int | None = None
    stationary: tuple[Tensor, ...] = STATIONARY
    fixed: dict[str, int] = field(default_factory=dict)
    balance: float = BALANCE
    exact: bool = False
    most_work: int | None = None  # the most iterations of a process; by default from `balance`
    pass_: Task = "forward"  # of the nest
    transposed: bool = False  # a training step does backward-data first
    panels: int | None = None  # wanted panels; by default the number that overlap pays for
    gradients: tuple[Tensor, ...] = GRADIENTS  # of the layer, that a training step computes
    turnable: tuple[Axis, ...] = ()  # axes along which blocks may be cut by input rows
    turned: tuple[Axis, ...] = ()  # axes along which they must be
    ghosts: bool = True  # see `Distribution`
    fewer_than: int | None = None  # words: an optimum with as many is of no use
    divided: bool = False  # other residue classes of the nest are tried, too, and may need less memory

    @property
    def sequences(self) -> tuple[Passes, ...]:
        """The passes of the nest, in each possible order."""
        if self.pass_ == "training":
            return sequences(self.transposed, self.gradients)
        return ((self.pass_,),)

    @property
    def moves(self) -> dict[Tensor, int]:
        """How often each tensor is communicated at least, if every reusable tensor is reused."""
        return moves(self.sequences[0])


@dataclass(frozen=True)
class Optimum:
    """The result of a search: a grid and the tilings of its passes."""

    grid: PerAxis
    tiling: TilingChoice
    work: int  # iterations of the most loaded process, see `Distribution.load`
    least_work: int  # w*: the least `work` of all grids without turned axes
    turned: tuple[Axis, ...] = ()
    classes: Classes = ()  # of the nest


# (lower bound of the words, key among equal bounds, order of insertion, state)
Lean = tuple[int, PerAxis, tuple[Axis, ...]]
Candidate = tuple[int, Key, int, "Range | PerAxis | Distribution | Optimum"]


def search(request: Request) -> Optimum:
    """The optimum of a request.

    Raises `InfeasibleError` if no grid exists or no plan fits the memory. In the second case the message
    names the least memory that is enough.
    """
    search_ = _Search(request)
    optimum = search_.run()
    if optimum is None:
        raise search_.infeasible()
    return optimum


def search_or_none(request: Request) -> Optimum | None:
    """The optimum of a request, or None. Faster than `search` if no plan fits."""
    search_ = _Search(request, PATIENCE // 8)
    return search_.run() if search_.space.least_work is not None else None


class _Search:
    """One run of the search. `patience`: see `PATIENCE`."""

    def __init__(self, request: Request, patience: int = PATIENCE) -> None:
        self.patience = patience
        self.request, self.nest, self.procs = request, request.nest, request.procs
        self.space = Space(request.nest, request.procs, request.fixed, request.exact)
        self.least_memory: dict[tuple[Axis, ...], LeastMemory] = {}
        self.insertions = itertools.count()
        self.steps = 0
        self.grids_left: float = MOST_TILED
        self.fitting: list[tuple[PerAxis, tuple[Axis, ...]]] = []  # met by `leanest`
        self.tiling_steps = TRAINING_STEPS if request.pass_ == "training" else TILING_STEPS
        self.memory_ratio = Fraction(1 << 62)  # least (needed memory / its bound) of grids that did not fit

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

    def _least_work(self) -> int:
        least = self.space.least_work
        if least is None:
            raise no_grid(self.space)
        return least

    def run(self) -> Optimum | None:
        """The optimum, or None if no grid fits the memory."""
        least, ranges, queue = self._least_work(), self.ranges, list[Candidate]()
        limit = self.request.limit_words
        best: Optimum | None = None
        beaten = False  # whether a grid fits, but moves too many words
        if whole := ranges.whole():
            self._push(queue, whole)
        while queue:
            bound, key, _, state = heapq.heappop(queue)
            if self.request.fewer_than is not None and bound >= self.request.fewer_than:
                return None
            if self.steps > 3 * self.patience and best is None:
                break
            match state:
                case Range() if not self._over_memory(state):
                    for half in ranges.halves(state):
                        self._push(queue, half)
                case PerAxis() if not self._over_memory(state):
                    for turned in self._turns(state):
                        self._push_turned(queue, state, key, turned)
                case Distribution():
                    tiling, needed = self._choose_tiling(state, limit, self._most_words(best), limit)
                    if limit is not None and needed > limit:
                        self._note_unfit(state.grid, needed)
                        continue
                    if tiling is None:
                        beaten = True
                    else:
                        nest = state.nest
                        found = Optimum(state.grid, tiling, state.load, least, nest.turned, nest.classes)
                        if best is None or tiling.words < best.tiling.words:
                            best = found
                        heapq.heappush(queue, (tiling.words, key, next(self.insertions), found))
                    effort = self.tiling_steps / TILING_STEPS
                    self.grids_left -= (1 + state.grid.size / PROCS_PER_TILED) * effort
                    if self.grids_left < 0:
                        return best
                case Optimum():
                    return state
        return self._leanest_optimum(least) if self.steps > self.patience and not beaten else None

    def _most_words(self, best: Optimum | None) -> int | None:
        """The words with which a grid is still of use."""
        if best is not None:
            return best.tiling.words
        return None if self.request.fewer_than is None else self.request.fewer_than - 1

    def _leanest_optimum(self, least: int) -> Optimum | None:
        """The best of a few grids that fit: those that the search for the least memory has met."""
        limit, moves = self.request.limit_words, self.request.moves
        if self.leanest[0] is None:
            return None
        bounds = [
            (self.ranges.grid_bound(grid, moves, turned), grid, turned) for grid, turned in self.fitting
        ]
        best: Optimum | None = None
        for bound, grid, turned in sorted(bounds)[:LEAN_TILED]:
            most = None if best is None else best.tiling.words - 1
            if most is not None and bound > most:
                break
            distribution = self._distribution(grid, turned)
            tiling, _ = self._choose_tiling(distribution, limit, most, limit)
            if tiling is not None:
                best = Optimum(grid, tiling, distribution.load, least, turned, self.nest.classes)
        return best

    def _turns(self, grid: PerAxis) -> Iterator[tuple[Axis, ...]]:
        """The choices of turned axes on a grid whose blocks have no more work than the cap."""
        for turned in self.ranges.turns(grid, self.request.turned):
            nest = self.nest.turn(turned)
            cut = all(getattr(grid, axis) <= getattr(nest.extents, axis) for axis in turned)
            if not turned or (cut and Distribution(nest, grid).load <= self.cap):
                yield turned

    def _distribution(self, grid: PerAxis, turned: tuple[Axis, ...]) -> Distribution:
        return Distribution(self.nest.turn(turned), grid, ghosts=self.request.ghosts)

    def _push_turned(self, queue: list[Candidate], grid: PerAxis, key: Key, turned: tuple[Axis, ...]) -> None:
        """Insert a grid with some turned axes into the queue; among equal words, fewer are taken."""
        distribution = self._distribution(grid, turned)
        bound = max(
            self.ranges.grid_bound(grid, self.request.moves, turned),
            heavy_words(distribution, self.request.sequences[0]),
        )
        heapq.heappush(queue, (bound, (*key[:3], len(turned)), next(self.insertions), distribution))

    def _push(self, queue: list[Candidate], each: Range) -> None:
        """Insert a range into the queue, or its grid if it has only one, unless none of its grids fits."""
        self.steps += 1
        if self._over_memory(each):
            return
        state = self.ranges.grid(each.first) if each.single else each
        bound = self.ranges.bound(each, self.request.moves, self.request.turned)
        heapq.heappush(queue, (bound, self.ranges.key(each), next(self.insertions), state))

    def _over_memory(self, grids: Range | PerAxis) -> bool:
        """Whether the lower bound of the memory of some grids is above the limit.

        After `patience` steps the bound is raised by the least ratio of needed memory to bound among the
        grids that did not fit.
        """
        limit = self.request.limit_words
        if limit is None:
            return False
        if self.steps > self.patience:
            return self._memory_bound(grids) * self.memory_ratio > limit
        return all(bound > limit for bound in self._memory_bounds(grids))

    def _note_unfit(self, grid: PerAxis, needed: int) -> None:
        """Count the steps of a grid that needs `needed` words, more than the limit, and update the ratio."""
        self.steps += self.tiling_steps
        self.memory_ratio = min(self.memory_ratio, Fraction(needed, self._memory_bound(grid)))

    def _memory_bound(self, grids: Range | PerAxis) -> int:
        """A lower bound of the memory of one grid, or of every grid in a range, in words."""
        return min(self._memory_bounds(grids))

    def _memory_bounds(self, grids: Range | PerAxis) -> Iterator[int]:
        """The same for each choice of turned axes."""
        if isinstance(grids, PerAxis):
            least = most = grids
        else:
            least, most = self.ranges.grid(grids.first), self.ranges.grid(grids.last)
        size = min(self.procs, most.size)
        choices = self.ranges.turns(most, self.request.turned)
        return (self._least_memory(turned)(least, most, size) for turned in choices)

    def _least_memory(self, turned: tuple[Axis, ...]) -> LeastMemory:
        """Lower bounds of the memory of grids with some turned axes."""
        if turned not in self.least_memory:
            nest = self.nest.turn(turned)
            self.least_memory[turned] = LeastMemory(nest, self.request.sequences, self.request.stationary)
        return self.least_memory[turned]

    @cached_property
    def leanest(self) -> tuple[Lean | None, bool]:
        """((least memory of any plan in words, its grid, its turned axes), whether it is surely the least).

        Best-first search by the lower bound of the memory. Every 128th range is followed down to one grid,
        for a solution early. The search ends after `STEPS` steps, if many grids need about the same.
        """
        whole, queue, insertions = self.ranges.whole(), list[tuple[int, int, Range]](), itertools.count()
        if whole:
            queue.append((self._memory_bound(whole), next(insertions), whole))
        best: Lean | None = None
        steps_left = STEPS
        while queue and steps_left > 0:
            bound, number, each = heapq.heappop(queue)
            if best is not None and bound >= best[0]:
                return best, True
            enough = max(best[0], self.request.limit_words or 0) if best else None
            found = self._descend(each, enough) if each.single or number % DIVE == 0 else None
            if found is not None:
                best = found if best is None else min(best, found)
                steps_left -= self.tiling_steps
            steps_left -= 1
            for half in [] if each.single else self.ranges.halves(each):
                heapq.heappush(queue, (self._memory_bound(half), next(insertions), half))
        return best, not queue

    def _descend(self, each: Range, enough: int | None) -> Lean | None:
        """(least memory, grid, turned axes) of a grid in a range, found by descent to the lower bounds.

        None if the descent ends at an empty range. Of a grid that needs more than `enough` words, the first
        is a lower bound above that.
        """
        while not each.single:
            halves = list(self.ranges.halves(each))
            if not halves:
                return None
            each = min(halves, key=self._memory_bound)
        grid = self.ranges.grid(each.first)
        found = [(self._least_of(self._distribution(grid, t), enough), grid, t) for t in self._turns(grid)]
        limit = self.request.limit_words or 0
        self.fitting += [(grid, turned) for words, grid, turned in found if words <= limit]
        return min(found, default=None)

    def _least_of(self, distribution: Distribution, enough: int | None) -> int:
        return self._choose_tiling(distribution, 0, enough=enough)[1]

    def _choose_tiling(
        self,
        distribution: Distribution,
        limit_words: int | None,
        most_words: int | None = None,
        enough: int | None = None,
    ) -> tuple[TilingChoice | None, int]:
        request = self.request
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
            )
        template = PassPlan(pass_=request.pass_)
        return choose_tiling(
            distribution, request.stationary, limit_words, template, request.panels, most_words, enough
        )

    def infeasible(self) -> InfeasibleError:
        """The error that says why no grid fits, and the least memory that is enough."""
        limit_words = self.request.limit_words
        best, sure = self.leanest if limit_words is not None else (None, True)
        if best is None or limit_words is None:
            return InfeasibleError(
                f"no grid of at most {self.procs} processes loads every process with at most {self.cap} "
                f"iterations; raise --balance or free a part of --grid"
            )
        size, needed = self.nest.word_bytes, best[0]
        most = "" if sure and not self.request.divided else "at most "
        return InfeasibleError(
            f"no plan for {self.procs} processes fits {limit_words * size} bytes per process; "
            f"the least memory that fits is {most}{needed * size} bytes (--memory {needed * size})"
        )
