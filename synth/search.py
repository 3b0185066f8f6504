"""The exact integer optimum: the grid, stationary tensor and tiles with the fewest received words.

Best first. A candidate enters the queue with a lower bound of its words and is refined when it comes up:

    range          a set of grids, bounded by the average process of all of them; halved
    grid           one grid, bounded in the same way
    distribution   the same, bounded by a few heavily loaded processes
    found          a grid with its best tiling: exact words

The first grid with a tiling to come up is the optimum. Ties go to the least work, the fewest idle
processes, then to few parts along c, w, h, d and k, in this order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from synth.axes import SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.distribution import Distribution
from synth.errors import InfeasibleError
from synth.fit import Fit, fit
from synth.grid_memory import LeastMemory
from synth.grid_ranges import Key, Range, Ranges
from synth.intervals import overlap, volume
from synth.nest import Nest
from synth.passes import WRITES, Task, reads
from synth.space import Space, work_cap
from synth.tiling import Tiling
from synth.training import fit_training

STATIONARY: tuple[Tensor, ...] = ("Out", "In", "Ker")
STEPS = 20_000  # ranges of grids looked at for the least memory that would do
DIVE = 128  # of which one is followed down to one grid
FIT_STEPS, TRAINING_STEPS = 20, 200  # ranges that take as long as the least memory of one grid


@dataclass(frozen=True)
class Request:
    """What is asked for. `memory` is in words per process; `fixed` pins parts of the grid."""

    nest: Nest
    procs: int
    memory: int | None = None
    stationary: tuple[Tensor, ...] = STATIONARY
    fixed: dict[str, int] = field(default_factory=dict)
    balance: float = 0.10
    exact: bool = False
    most_work: int | None = None  # iterations a process may have; by default balance decides
    pass_: Task = "forward"  # of the nest
    transposed: bool = False  # training does backward-data first
    panels: int | None = None  # wanted in the streaming loop; by default as many as overlap pays for

    @property
    def moves(self) -> int:
        """How often each tensor moves at least: twice in training, where one gather of each is kept."""
        return 2 if self.pass_ == "training" else 1


@dataclass(frozen=True)
class Found:
    """The optimum: a grid and its tiling; `work` is in iterations of the most loaded process."""

    grid: PerAxis
    fit: Fit
    work: int
    least_work: int  # w*


# a bound of the words, the key among equals, the order of arrival, and what the bound is about
Candidate = tuple[int, Key, int, "Range | PerAxis | Distribution | Found"]


def search(request: Request) -> Found:
    """The optimum of a request.

    Raises `InfeasibleError` when no grid exists, or when no plan fits the memory; the message then says
    the least memory that would do.
    """
    asked = _Search(request)
    found = asked.run()
    if found is None:
        raise asked.infeasible()
    return found


def feasible(request: Request) -> Found | None:
    """The optimum of a request, or None, which is found sooner than what `search` says would do."""
    asked = _Search(request)
    return asked.run() if asked.space.least_work is not None else None


class _Search:
    def __init__(self, request: Request) -> None:
        self.request, self.nest, self.procs = request, request.nest, request.procs
        self.space = Space(request.nest, request.procs, request.fixed, request.exact)
        self.least_memory = LeastMemory(request.nest, request.pass_, request.stationary, request.transposed)
        self.ticket = itertools.count()

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

    def run(self) -> Found | None:
        """The optimum, None where no grid fits."""
        least, ranges, queue = self._least_work(), self.ranges, list[Candidate]()
        if whole := ranges.whole():
            self._push(queue, whole)
        while queue:
            bound, key, _, state = heapq.heappop(queue)
            match state:
                case Range():
                    for half in ranges.halves(state):
                        self._push(queue, half)
                case PerAxis():
                    distribution = Distribution(self.nest, state)
                    tighter = max(bound, self._loaded(distribution))
                    heapq.heappush(queue, (tighter, key, next(self.ticket), distribution))
                case Distribution():
                    best, _ = self._fit(state, self.request.memory)
                    if best is not None:
                        found = Found(state.grid, best, state.most_work.size, least)
                        heapq.heappush(queue, (best.words, key, next(self.ticket), found))
                case Found():
                    return state
        return None

    def _push(self, queue: list[Candidate], each: Range) -> None:
        """Queue a range, unless nothing in it fits the memory; a range of one grid is that grid."""
        if self.request.memory is not None and self._memory(each) > self.request.memory:
            return
        state = self.ranges.grid(each.first) if each.single else each
        bound = self.ranges.bound(each) * self.request.moves
        heapq.heappush(queue, (bound, self.ranges.key(each), next(self.ticket), state))

    def _memory(self, each: Range) -> int:
        most = self.ranges.grid(each.last)
        return self.least_memory(self.ranges.grid(each.first), most, min(self.procs, most.size))

    def _needed(self, whole: Range) -> tuple[int | None, bool]:
        """The least memory in which any plan fits, in words, and whether that is sure.

        Best first as well, by a bound of the memory; now and then what comes up is followed down to one grid.
        Where many grids need about the same, only some are looked at.
        """
        self.ticket = itertools.count()
        queue = [(self._memory(whole), next(self.ticket), whole)]
        needed: int | None = None
        room = STEPS
        while queue and room > 0:
            bound, ticket, each = heapq.heappop(queue)
            if needed is not None and bound >= needed:
                return needed, True
            known = self._leanest(each) if each.single or ticket % DIVE == 0 else None
            if known is not None:
                needed = known if needed is None else min(needed, known)
                room -= TRAINING_STEPS if self.request.pass_ == "training" else FIT_STEPS
            room -= 1
            for half in [] if each.single else self.ranges.halves(each):
                heapq.heappush(queue, (self._memory(half), next(self.ticket), half))
        return needed, not queue

    def _leanest(self, each: Range) -> int | None:
        """The least memory of the grid that the least bounds lead to; None where they lead nowhere."""
        while not each.single:
            halves = list(self.ranges.halves(each))
            if not halves:
                return None
            each = min(halves, key=self._memory)
        return self._fit(Distribution(self.nest, self.ranges.grid(each.first)), 0)[1]

    def _fit(self, distribution: Distribution, memory: int | None) -> tuple[Fit | None, int]:
        asked = self.request
        if asked.pass_ == "training":
            how = asked.stationary, memory, asked.panels, asked.transposed
            return fit_training(distribution, *how)
        role = Tiling(pass_=asked.pass_)
        return fit(distribution, asked.stationary, memory, role, asked.panels)

    def infeasible(self) -> InfeasibleError:
        """Why no grid fits, and what would do."""
        whole, memory = self.ranges.whole(), self.request.memory
        needed, sure = self._needed(whole) if whole and memory is not None else (None, True)
        if needed is None or memory is None:
            return InfeasibleError(
                f"no grid of at most {self.procs} processes loads every process with at most {self.cap} "
                f"iterations; raise --balance or free a part of --grid"
            )
        size = self.nest.word_bytes
        most = "" if sure else "at most "
        return InfeasibleError(
            f"no plan for {self.procs} processes fits {memory * size} bytes per process; "
            f"the least that would do is {most}{needed * size} bytes (--memory {needed * size})"
        )

    # -- lower bounds ---------------------------------------------------------------------------------

    def _loaded(self, distribution: Distribution) -> int:
        """Words that some heavily loaded processes receive at least, tile by tile or not: the most of them.

        They have the largest block along every axis; the first of them owns the largest shares, the last
        the smallest. In training every tensor is gathered once and summed once.
        """
        task = self.request.pass_
        gathered = TENSORS if task == "training" else reads(task)
        summed = TENSORS if task == "training" else (WRITES[task],)
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
