"""The named strategies of the literature, each as the set of axes that it may split.

The search finds the best plan of a strategy on a layer, like any plan, but over these axes only. A strategy
that exceeds the work balance or the memory limit is reported with its cost and marked as not feasible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.layer.axes import AXES, PerAxis, Tensor
from synth.search.branch_and_bound import Optimum, Request, search_or_none
from synth.search.grids import work_cap


@dataclass(frozen=True)
class Strategy:
    """A named strategy: the axes it may split, the stationary tensor (None: any), and its source."""

    name: str
    axes: str
    stationary: Tensor | None
    source: str


STRATEGIES: tuple[Strategy, ...] = (
    Strategy("data", "b", None, "samples are split; the kernel is gathered, as in FSDP"),
    Strategy("spatial", "dhw", None, "rows are split; halos are exchanged"),
    Strategy("channel", "gc", None, "input channels are split; partial sums are reduced"),
    Strategy("filter", "gk", None, "output channels are split; the input is gathered"),
    Strategy("data+filter", "bgk", None, "Kahira et al., HPDC'21"),
    Strategy("data+spatial", "bdhw", None, "Kahira et al., HPDC'21"),
    Strategy("stationary-x", "bgdhwc", "In", "Dryden et al., SC'19: x is stationary, so k is not split"),
    Strategy("stationary-y", "bgdhwk", "Out", "Dryden et al., SC'19: y is stationary, so c is not split"),
    Strategy("stationary-w", "bgdhwck", "Ker", "Dryden et al., SC'19: w is stationary"),
    Strategy("2D", "bgdhwk", "Out", "Li et al., SPAA'21: SUMMA, c is not split"),
    Strategy("2.5D", "bgdhwck", "Out", "Li et al., SPAA'21: c is split as far as memory allows"),
    Strategy("3D", "bgdhwck", "Out", "Li et al., SPAA'21: c is split freely"),
)


@dataclass(frozen=True)
class Alternative:
    """The best plan of a strategy on a layer, or the reason why there is none."""

    name: str
    grid: PerAxis | None
    words: int | None
    used_bytes: int | None
    feasible: bool
    why: str = ""  # why it is not feasible
    seconds: float | None = None  # on the plan's machine, for objective time only


def alternatives(request: Request, least_work: int) -> list[Alternative]:
    """The rows of all named strategies for the layer, processes, memory and work balance of a request.

    `least_work`: w* over all grids, in iterations. It defines the work balance of every strategy.
    """
    cap = work_cap(least_work, request.balance)
    unpinned = replace(request, fixed={}, most_work=cap, exact=False)
    known = _Known()
    return [_alternative(strategy, unpinned, least_work, known) for strategy in STRATEGIES]


class _Known:
    """A cache of search results. Strategies that may split the same axes of a layer share them."""

    def __init__(self) -> None:
        self.within_memory: dict[tuple[str, tuple[Tensor, ...]], Optimum | None] = {}
        self.grids: dict[tuple[str, int | None], PerAxis] = {}

    def limited(self, request: Request) -> Optimum | None:
        """The optimum within the memory limit, or None."""
        key = free_axes(request), request.stationary
        if key not in self.within_memory:
            self.within_memory[key] = search_or_none(request)
        return self.within_memory[key]

    def freely(self, request: Request) -> Optimum | None:
        """The optimum without a memory limit, or None.

        The words of a grid then do not depend on the stationary tensor, so one search is enough.
        """
        key = free_axes(request), request.most_work
        if key in self.grids:
            return search_or_none(replace(request, fixed=self.grids[key]._asdict()))
        found = search_or_none(request)
        if found:
            self.grids[key] = found.grid
        return found


def free_axes(request: Request) -> str:
    """The axes with extent > 1 that a request may split."""
    sizes = request.nest.extents._asdict()
    return "".join(axis for axis in AXES if axis not in request.fixed and sizes[axis] > 1)


def _alternative(strategy: Strategy, request: Request, least_work: int, known: _Known) -> Alternative:
    stationary: Sequence[Tensor] = [strategy.stationary] if strategy.stationary else request.stationary
    fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in strategy.axes}
    asked = replace(request, fixed=fixed, stationary=tuple(stationary))
    free = replace(asked, limit_words=None)
    limited = request.limit_words is not None and strategy.name != "3D"  # 3D takes all the memory it can use
    found = (known.limited(asked) if limited else None) or known.freely(free)
    if found:
        fits = request.limit_words is None or found.tiling.used_words <= request.limit_words
        return _row(strategy.name, request, found, "" if fits else "needs more than the memory limit")
    found = search_or_none(replace(free, most_work=None, balance=0.0))
    if found is None:
        return Alternative(strategy.name, None, None, None, False, "no such grid")
    load = found.work / least_work
    return _row(strategy.name, request, found, f"{load:.2f} times the least work of any grid")


def _row(name: str, request: Request, found: Optimum, why: str) -> Alternative:
    size = found.tiling.used_words * request.nest.word_bytes
    return Alternative(name, found.grid, found.tiling.words, size, not why, why)
