"""Times jobs in rounds, until their medians hold still.

Each round runs every job once, on all ranks together. So what disturbs the machine for
a moment disturbs one sample of many jobs, and the median of none. The time of a job is
that of the slowest node, which a schedule waits for: from its first rank's begin to its
last rank's end, by the clock that they share. If ranks outnumber cores, some begin when
others have ended.

Jobs in turn are one behind the other, as the kernels of a network are: none finds its
tensors in a cache. Their time is the mean over the ranks of a node.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.grid.ranks import Ranks

LEAST = 3  # rounds
TURNS = 2  # in a round, of jobs in turn
WITHIN = 0.03  # error of medians, in the root of the mean square of all jobs
MOST_CALLS = 500
NORMAL = 1.4826, 1.2533  # deviation by median deviation; error of a median by a mean's


class Job(NamedTuple):
    """What is timed. series: seconds of calls in a row that make one sample; 0 for one.

    If ranks outnumber cores, a single short run would mostly wait for a core.
    in_turn: it is behind the others that are in turn, and not behind itself.
    """

    run: Callable[[], object]
    series: float = 0.0
    in_turn: bool = False


class Timed(NamedTuple):
    """Seconds of one call of a job: the median, and the relative error of it."""

    seconds: float
    error: float


class Nodes(NamedTuple):
    """The ranks that measure. local: how many a node has. begin: a barrier of them."""

    ranks: Ranks
    local: int
    device: torch.device
    begin: Callable[[], object]

    @property
    def several(self) -> bool:
        """Whether there is more than one node."""
        return self.ranks.size > self.local

    def spans(self, times: list[tuple[float, float]]) -> list[float]:
        """Seconds of the slowest node, of each (begin, end) of this rank.

        The same on all ranks, which call this together.
        """
        every = self._of_all(times)
        spans = every[..., 1].amax(1) - every[..., 0].amin(1)
        return [float(each) for each in spans.amax(0)]

    def means(self, seconds: list[float]) -> list[float]:
        """The mean over the ranks of the slowest node, of each of some seconds."""
        means = self._of_all(seconds).mean(1)
        return [float(each) for each in means.amax(0)]

    def _of_all(self, numbers: list[Any]) -> torch.Tensor:
        """[node, rank of the node, ...]: the numbers of all ranks."""
        mine = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        found = [torch.empty_like(mine) for _ in range(self.ranks.size)]
        dist.all_gather(found, mine, group=self.ranks.group)
        return torch.stack(found).view(-1, self.local, *mine.shape)

    def timed(
        self, run: Callable[[], object], calls: int, together: bool = False
    ) -> tuple[float, float]:
        """Begin and end of some calls that all ranks begin together.

        together: they also end together. Nodes may share cores; then one may begin to
        compute when another has computed, and would not measure that it waited.
        """
        self.begin()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if together:
            self.begin()
        return begin, time.perf_counter()

    def in_turn(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of each of some jobs, one behind the other, on average of `TURNS`."""
        self.begin()
        found = [0.0] * len(runs)
        for _ in range(TURNS):
            for at, run in enumerate(runs):
                begin = time.perf_counter()
                run()
                found[at] += (time.perf_counter() - begin) / TURNS
        return found


def timed_in_rounds(
    jobs: Mapping[str, Job], nodes: Any, least: int = LEAST, budget: float = 0.0
) -> dict[str, Timed]:
    """The median and its error, by job. All ranks call this with the same jobs.

    least: rounds; then they go on until medians hold still, for `budget` seconds after
    the first begin at most. nodes: `Nodes`.
    """
    began = time.perf_counter()
    turned = {name: job.run for name, job in jobs.items() if job.in_turn}
    alone = {name: job for name, job in jobs.items() if not job.in_turn}
    each = list(alone.values())
    together = [nodes.several and job.series > 0 for job in each]
    if any(together):  # what ending together takes
        each.append(Job(_nothing))
        together.append(True)
    for job in each:  # the first run warms up
        nodes.timed(job.run, 1)
    once = nodes.spans([nodes.timed(job.run, 1) for job in each])
    calls = [
        int(min(MOST_CALLS, job.series / max(seconds, 1e-9))) + 1
        for job, seconds in zip(each, once, strict=True)
    ]
    samples: list[list[float]] = [[] for _ in each]
    in_turn: list[list[float]] = [[] for _ in turned]
    if turned:
        nodes.in_turn(list(turned.values()))
    while True:
        if turned:
            means = nodes.means(nodes.in_turn(list(turned.values())))
            for kept, seconds in zip(in_turn, means, strict=True):
                kept.append(seconds)
        rows = zip(each, calls, together, strict=True)
        times = [nodes.timed(job.run, count, end) for job, count, end in rows]
        *spans, passed = nodes.spans([*times, (began, time.perf_counter())])
        for kept, seconds, n in zip(samples, spans, calls, strict=True):
            kept.append(seconds / n)
        if len(samples[0]) >= least and (
            passed >= budget or settled([*samples, *in_turn])
        ):
            break
    if any(together):
        pause = statistics.median(samples.pop())
        for kept, n, end in zip(samples, calls, together, strict=False):
            kept[:] = [max(0.0, seconds - pause / n * end) for seconds in kept]
    found = dict(zip(alone, map(median, samples), strict=True))
    found |= dict(zip(turned, map(median, in_turn), strict=True))
    return {name: found[name] for name in jobs}


def _nothing() -> None:
    """A job that takes no time."""


def median(samples: Sequence[float]) -> Timed:
    """The median of some samples and its relative standard error.

    The deviation is estimated from the median deviation, which a few samples that were
    disturbed do not change. The error of less than three samples is unknown: infinite.
    """
    middle = statistics.median(samples)
    if len(samples) < 3 or middle <= 0:
        return Timed(middle, math.inf)
    spread = statistics.median(abs(each - middle) for each in samples)
    return Timed(middle, math.prod(NORMAL) * spread / middle / math.sqrt(len(samples)))


def settled(samples: Sequence[Sequence[float]], within: float = WITHIN) -> bool:
    """Whether the medians of all jobs hold still: the root of their mean squared error.

    A fit averages over its jobs, so one that is noisy does not count by itself.
    """
    errors = [median(each).error for each in samples]
    return math.sqrt(statistics.fmean(error**2 for error in errors)) <= within
