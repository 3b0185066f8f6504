"""The exact integer optimum: the grid, stationary tensor and tiles with the fewest received words.

Best first. A candidate enters the queue with a lower bound of its words and is refined when it comes up:

    range          a set of grids, bounded by the average process of all of them; halved
    grid           one grid, bounded in the same way
    distribution   the same, bounded by a few heavily loaded processes
    found          a grid with its best pass plan: exact words

The first grid with a pass plan to come up is the optimum. Ties go to the least work, the fewest idle
processes, then to few parts along c, w, h, d and k, in this order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from synth.base.errors import InfeasibleError
from synth.base.work_balance import BALANCE
from synth.layer.axes import SPATIAL, Axis, PerAxis, Tensor
from synth.layer.intervals import overlap, volume
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, WRITES, Passes, Task, moves, reads, sequences
from synth.schedule.distribution import Distribution
from synth.schedule.memory_bound import LeastMemory
from synth.schedule.pass_plan import PassPlan
from synth.search.grid_ranges import Key, Range, Ranges
from synth.search.grids import Space, work_cap
from synth.search.tiling_search import TilingChoice, choose_tiling
from synth.search.training_step import choose_training_tilings

STATIONARY: tuple[Tensor, ...] = ("Out", "In", "Ker")
WORDS_ROOM, CHEAP = 20_000, 2_000  # grids fit, one more for so many processes, until the best known is taken
PATIENCE = 20_000  # steps until grids are expected not to fit; after three times as many, all are
STEPS = 20_000  # ranges of grids looked at for the least memory that would do, a step each
DIVE = 128  # of which one is followed down to one grid
FIT_STEPS, TRAINING_STEPS = 20, 200  # that the least memory of one grid takes


@dataclass(frozen=True)
class Request:
    """What is asked for. `limit_words` is per process; `fixed` pins parts of the grid."""

    nest: Nest
    procs: int
    limit_words: int | None = None
    stationary: tuple[Tensor, ...] = STATIONARY
    fixed: dict[str, int] = field(default_factory=dict)
    balance: float = BALANCE
    exact: bool = False
    most_work: int | None = None  # iterations a process may have; by default balance decides
    pass_: Task = "forward"  # of the nest
    transposed: bool = False  # training does backward-data first
    panels: int | None = None  # wanted in the streaming loop; by default as many as overlap pays for
    gradients: tuple[Tensor, ...] = GRADIENTS  # of the layer, that a training step is to make

    @property
    def sequences(self) -> tuple[Passes, ...]:
        """The passes of the nest, in all orders that they may have."""
        if self.pass_ == "training":
            return sequences(self.transposed, self.gradients)
        return ((self.pass_,),)

    @property
    def moves(self) -> dict[Tensor, int]:
        """How often each tensor moves at least: in training one gather of each is kept."""
        return moves(self.sequences[0])


@dataclass(frozen=True)
class Optimum:
    """The optimum: a grid and the plans of its passes; `work` is in iterations of the most loaded process."""

    grid: PerAxis
    tiling: TilingChoice
    work: int
    least_work: int  # w*


# a bound of the words, the key among equals, the order of arrival, and what the bound is about
Candidate = tuple[int, Key, int, "Range | PerAxis | Distribution | Optimum"]


def search(request: Request) -> Optimum:
    """The optimum of a request.

    Raises `InfeasibleError` when no grid exists, or when no plan fits the memory; the message then says
    the least memory that would do.
    """
    asked = _Search(request)
    found = asked.run()
    if found is None:
        raise asked.infeasible()
    return found


def search_or_none(request: Request) -> Optimum | None:
    """The optimum of a request, or None, which is found sooner than what `search` says would do."""
    asked = _Search(request, PATIENCE // 8)
    return asked.run() if asked.space.least_work is not None else None


class _Search:
    def __init__(self, request: Request, patience: int = PATIENCE) -> None:
        self.patience = patience
        self.request, self.nest, self.procs = request, request.nest, request.procs
        self.space = Space(request.nest, request.procs, request.fixed, request.exact)
        self.least_memory = LeastMemory(request.nest, request.sequences, request.stationary)
        self.ticket = itertools.count()
        self.spent = 0  # steps
        self.fit_steps = TRAINING_STEPS if request.pass_ == "training" else FIT_STEPS
        self.more = Fraction(1 << 62)  # the least that a grid needed that did not fit, over its bound

    @cached_property
    def cap(self) -> int:
        """Iterations that a process may be loaded with."""
        if self.request.most_work is not None:
            return self.request.most_work
        return work_cap(self._least_work(), self.request.balance)

    @cached_property
    def ranges(self) -> Ranges:
        """All grids, in ranges."""
        return Ranges(self.space, self.cap)

    def _least_work(self) -> int:
        least = self.space.least_work
        if least is None:
            pinned = ", ".join(f"{axis}={n}" for axis, n in self.request.fixed.items())
            within = f" with {pinned}" if pinned else ""
            needed = math.prod(self.request.fixed.values())
            if needed > self.procs:
                raise InfeasibleError(
                    f"no grid of at most {self.procs} processes exists{within}; "
                    f"take at least {needed} processes or free a part of --grid"
                )
            raise InfeasibleError(
                f"no grid of exactly {self.procs} processes exists{within} for {self.nest}; "
                f"allow idle processes (leave out --exact-procs) or take another number"
            )
        return least

    def run(self) -> Optimum | None:
        """The optimum, None where no grid fits."""
        least, ranges, queue = self._least_work(), self.ranges, list[Candidate]()
        room: float = WORDS_ROOM
        best: Optimum | None = None
        if whole := ranges.whole():
            self._push(queue, whole)
        while queue:
            bound, key, _, state = heapq.heappop(queue)
            if self.spent > 3 * self.patience and best is None:
                break
            match state:
                case Range() if not self._beyond(state):
                    for half in ranges.halves(state):
                        self._push(queue, half)
                case PerAxis() if not self._beyond(state):
                    distribution = Distribution(self.nest, state)
                    tighter = max(bound, self._loaded(distribution))
                    heapq.heappush(queue, (tighter, key, next(self.ticket), distribution))
                case Distribution():
                    tiling, needed = self._choose_tiling(state, self.request.limit_words)
                    if tiling is None:
                        self._fruitless(state.grid, needed)
                        continue
                    found = Optimum(state.grid, tiling, state.most_work.size, least)
                    if best is None or tiling.words < best.tiling.words:
                        best = found
                    heapq.heappush(queue, (tiling.words, key, next(self.ticket), found))
                    room -= (1 + state.grid.size / CHEAP) * self.fit_steps / FIT_STEPS
                    if room < 0:
                        return best
                case Optimum():
                    return state
        return self._of_the_leanest(least) if self.spent > self.patience else None

    def _of_the_leanest(self, least: int) -> Optimum | None:
        """The grid of the least memory, where it fits after all."""
        best, _ = self.leanest
        distribution = Distribution(self.nest, best[1]) if best else None
        tiling = self._choose_tiling(distribution, self.request.limit_words)[0] if distribution else None
        return (
            Optimum(distribution.grid, tiling, distribution.most_work.size, least)
            if tiling and distribution
            else None
        )

    def _push(self, queue: list[Candidate], each: Range) -> None:
        """Queue a range, unless nothing in it fits the memory; a range of one grid is that grid."""
        self.spent += 1
        if self._beyond(each):
            return
        state = self.ranges.grid(each.first) if each.single else each
        bound = self.ranges.bound(each, self.request.moves)
        heapq.heappush(queue, (bound, self.ranges.key(each), next(self.ticket), state))

    def _beyond(self, grids: Range | PerAxis) -> bool:
        """Whether no grid fits by the bound of the memory.

        Where many that should fit did not, as little as they needed beyond their bounds is expected of all.
        """
        limit = self.request.limit_words
        if limit is None:
            return False
        return self._memory(grids) * (self.more if self.spent > self.patience else 1) > limit

    def _fruitless(self, grid: PerAxis, needed: int) -> None:
        self.spent += self.fit_steps
        self.more = min(self.more, Fraction(needed, self._memory(grid)))

    def _memory(self, grids: Range | PerAxis) -> int:
        if isinstance(grids, PerAxis):
            return self.least_memory(grids, grids, grids.size)
        most = self.ranges.grid(grids.last)
        return self.least_memory(self.ranges.grid(grids.first), most, min(self.procs, most.size))

    @cached_property
    def leanest(self) -> tuple[tuple[int, PerAxis] | None, bool]:
        """The least memory in which any plan fits, in words, with its grid, and whether it is sure.

        Best first as well, by a bound of the memory; now and then what comes up is followed down to one grid.
        Where many grids need about the same, only some are looked at.
        """
        whole, queue, ticket = self.ranges.whole(), list[tuple[int, int, Range]](), itertools.count()
        if whole:
            queue.append((self._memory(whole), next(ticket), whole))
        best: tuple[int, PerAxis] | None = None
        room = STEPS
        while queue and room > 0:
            bound, number, each = heapq.heappop(queue)
            if best is not None and bound >= best[0]:
                return best, True
            known = self._down(each) if each.single or number % DIVE == 0 else None
            if known is not None:
                best = known if best is None else min(best, known)
                room -= self.fit_steps
            room -= 1
            for half in [] if each.single else self.ranges.halves(each):
                heapq.heappush(queue, (self._memory(half), next(ticket), half))
        return best, not queue

    def _down(self, each: Range) -> tuple[int, PerAxis] | None:
        """The least memory of the grid that the least bounds lead to; None where they lead nowhere."""
        while not each.single:
            halves = list(self.ranges.halves(each))
            if not halves:
                return None
            each = min(halves, key=self._memory)
        grid = self.ranges.grid(each.first)
        return self._choose_tiling(Distribution(self.nest, grid), 0)[1], grid

    def _choose_tiling(
        self, distribution: Distribution, limit_words: int | None
    ) -> tuple[TilingChoice | None, int]:
        asked = self.request
        if asked.pass_ == "training":
            how = asked.stationary, limit_words, asked.panels, asked.transposed, asked.gradients
            return choose_training_tilings(distribution, *how)
        role = PassPlan(pass_=asked.pass_)
        return choose_tiling(distribution, asked.stationary, limit_words, role, asked.panels)

    def infeasible(self) -> InfeasibleError:
        """Why no grid fits, and what would do."""
        limit_words = self.request.limit_words
        best, sure = self.leanest if limit_words is not None else (None, True)
        if best is None or limit_words is None:
            return InfeasibleError(
                f"no grid of at most {self.procs} processes loads every process with at most {self.cap} "
                f"iterations; raise --balance or free a part of --grid"
            )
        size, needed = self.nest.word_bytes, best[0]
        most = "" if sure else "at most "
        return InfeasibleError(
            f"no plan for {self.procs} processes fits {limit_words * size} bytes per process; "
            f"the least that would do is {most}{needed * size} bytes (--memory {needed * size})"
        )

    # -- lower bounds ---------------------------------------------------------------------------------

    def _loaded(self, distribution: Distribution) -> int:
        """Words that some heavily loaded processes receive at least, tile by tile or not: the most of them.

        They have the largest block along every axis; the first of them owns the largest shares, the last
        the smallest. What is gathered for one pass may be kept for another.
        """
        passes = self.request.sequences[0]
        gathered = {tensor for pass_ in passes for tensor in reads(pass_)}
        summed = [WRITES[pass_] for pass_ in passes]
        most = 0
        for at in self._heavy(distribution):
            words = 0
            for tensor in gathered:
                needed = distribution.needed(tensor, at)
                words += volume(needed) - volume(overlap(needed, distribution.owned(tensor, at)))
            for tensor in summed:
                words += (distribution.group_size(tensor) - 1) * volume(distribution.carried(tensor, at))
            most = max(most, words)
        return most

    def _heavy(self, distribution: Distribution) -> Iterator[PerAxis]:
        n, grid = self.nest.extents, distribution.grid
        last = PerAxis(*((extent - 1) % parts for extent, parts in zip(n, grid, strict=True)))
        rows = {axis: self._middle(axis, getattr(grid, axis)) for axis in SPATIAL}
        yield PerAxis(**rows)
        yield PerAxis(**{axis: int(getattr(grid, axis) > 2) for axis in SPATIAL})  # no padding, if shorter
        yield last._replace(**rows)
        yield last

    def _middle(self, axis: Axis, parts: int) -> int:
        """Where a longest block lies that padding cuts least: the second, if it is as long as the first."""
        return 1 if parts > 2 and (getattr(self.nest.extents, axis) - 1) % parts > 0 else 0
