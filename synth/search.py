"""The exact integer optimum: the grid, stationary tensor and tiles with the fewest received words.

Best first. A candidate enters the queue with a lower bound of its words and is refined when it comes up:

    channels   a grid over (g, c, k), bounded over all ways to split x
    grid       a whole grid, bounded by the average process, then by a few heavily loaded ones
    plan       a grid with its best tiling: exact words

The first plan to come up is the optimum. Ties go to the least work, the fewest idle processes, then to
few parts along c, w, h, d and k, in this order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from synth.axes import SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.distribution import Distribution
from synth.errors import InfeasibleError
from synth.fit import Fit, fit
from synth.intervals import overlap, volume
from synth.nest import Nest
from synth.passes import WRITES, Task, reads
from synth.space import Space
from synth.tiling import Tiling
from synth.training import fit_training

STATIONARY: tuple[Tensor, ...] = ("Out", "In", "Ker")


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


Key = tuple[int, int, tuple[int, ...]]  # work, idle processes, fixed order


def search(request: Request) -> Found:
    """The optimum of a request.

    Raises `InfeasibleError` when no grid exists, or when no plan fits the memory; the message then says
    the least memory that would do.
    """
    return _Search(request).run()


class _Search:
    def __init__(self, request: Request) -> None:
        self.request, self.nest, self.procs = request, request.nest, request.procs
        self.space = Space(request.nest, request.procs, request.fixed, request.exact)
        self.total = self.nest.total_words
        self.ticket = itertools.count()

    @cached_property
    def cap(self) -> int:
        """Iterations that a process may be loaded with."""
        if self.request.most_work is not None:
            return self.request.most_work
        return int((1 + self.request.balance) * self._least_work() + 1e-9)

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

    def run(self) -> Found:
        least = self._least_work()
        queue: list[tuple[float, Key, int, str, PerAxis, Fit | None]] = []
        for channels in self.space.channel_grids():
            bound = self._channels_bound(channels)
            if bound is not None:
                queue.append((bound, (0, 0, ()), next(self.ticket), "channels", channels, None))
        heapq.heapify(queue)
        needed: int | None = None
        while queue:
            bound, key, _, stage, grid, plan = heapq.heappop(queue)
            if plan is not None:
                return Found(grid, plan, self._work(grid), least)
            if stage == "channels":
                for whole in self._grids(grid):
                    entry = (self._average(whole), self._key(whole), next(self.ticket), "grid", whole, None)
                    heapq.heappush(queue, entry)
                continue
            distribution = Distribution(self.nest, grid)
            if stage == "grid":
                tighter = max(bound, self._loaded(distribution))
                heapq.heappush(queue, (tighter, key, next(self.ticket), "bounded", grid, None))
                continue
            best, least_memory = self._fit(distribution)
            needed = least_memory if needed is None else min(needed, least_memory)
            if best is not None:
                heapq.heappush(queue, (best.words, key, next(self.ticket), "plan", grid, best))
        raise self._infeasible(needed)

    def _fit(self, distribution: Distribution) -> tuple[Fit | None, int]:
        asked = self.request
        if asked.pass_ == "training":
            how = asked.stationary, asked.memory, asked.panels, asked.transposed
            return fit_training(distribution, *how)
        role = Tiling(pass_=asked.pass_)
        return fit(distribution, asked.stationary, asked.memory, role, asked.panels)

    def _infeasible(self, needed: int | None) -> InfeasibleError:
        if needed is None or self.request.memory is None:
            return InfeasibleError(
                f"no grid of at most {self.procs} processes loads every process with at most {self.cap} "
                f"iterations; raise --balance or free a part of --grid"
            )
        size = self.nest.word_bytes
        return InfeasibleError(
            f"no plan for {self.procs} processes fits {self.request.memory * size} bytes per process; "
            f"the least that would do is {needed * size} bytes (--memory {needed * size})"
        )

    # -- candidates -----------------------------------------------------------------------------------

    def _work(self, grid: PerAxis) -> int:
        return Distribution(self.nest, grid).most_work.size

    def _key(self, grid: PerAxis) -> Key:
        order = (grid.c, grid.w, grid.h, grid.d, grid.k, grid.g, grid.b)
        return self._work(grid), self.procs - grid.size, order

    def _channel_work(self, channels: PerAxis) -> int:
        axes: tuple[Axis, ...] = ("g", "c", "k")
        work = 1
        for axis in axes:
            work *= self.space.block(axis, getattr(channels, axis))
        return work

    def _grids(self, channels: PerAxis) -> Iterator[PerAxis]:
        """All admitted grids with these parts along g, c and k."""
        room, work = self.procs // channels.size, self._channel_work(channels)
        stop = bisect_right(self.space.x_grids, room, key=lambda each: each[0])
        for procs, x_work, (b, d, h, w) in self.space.x_grids[:stop]:
            if work * x_work > self.cap or (self.request.exact and procs != room):
                continue
            yield PerAxis(b, channels.g, d, h, w, channels.c, channels.k)

    # -- lower bounds ---------------------------------------------------------------------------------

    def _channels_bound(self, channels: PerAxis) -> float | None:
        """Fewest words of the average process over all splits of x; None when none is admitted."""
        room, work = self.procs // channels.size, self._channel_work(channels)
        if work * self.space.x_least_work(room) > self.cap:
            return None
        words = self.nest.words
        ker = words["Ker"] / channels.size
        shared = words["In"] / (channels.g * channels.c) + words["Out"] / (channels.g * channels.k)
        per_x = shared - self.total / channels.size
        fewest = max(1.0, self.nest.extents.x / max(1, self.cap // work))
        return max(0.0, ker + min(per_x / room, per_x / fewest)) * self.request.moves

    def _average(self, grid: PerAxis) -> float:
        """Words that the average process receives, clipped footprints taken from below."""
        words = self.nest.words
        rows = 1.0
        for axis in SPATIAL:
            window, parts = self.nest.windows[axis], getattr(grid, axis)
            rows *= (window.size + (parts - 1) * window.overlap) / parts / window.size
        inputs = words["In"] * rows / (grid.b * grid.g * grid.c)
        ker = words["Ker"] / (grid.g * grid.c * grid.k)
        out = words["Out"] / (grid.x * grid.g * grid.k)
        average = max(0.0, inputs + ker + out - self.total / grid.size)
        return average * self.request.moves * (1 - 1e-12)

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
        yield last._replace(**rows)
        yield last

    def _middle(self, axis: Axis, parts: int) -> int:
        """Where a longest block lies that padding cuts least: the second, if it is as long as the first."""
        return 1 if parts > 2 and (getattr(self.nest.extents, axis) - 1) % parts > 0 else 0
