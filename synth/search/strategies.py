"""The named strategies of the literature, as points of the one space: which axes each may split.

A strategy is searched like a plan, over the axes it names, so its row is the best that it can do on this
layer. A strategy that loads a process beyond the work balance, or does not fit the memory, is shown with
what it would cost and marked as not feasible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.layer.axes import AXES, PerAxis, Tensor
from synth.search.branch_and_bound import Optimum, Request, search_or_none
from synth.search.grids import work_cap


@dataclass(frozen=True)
class Strategy:
    """A name, the axes that it splits, the tensor that stays (None: any), and where it comes from."""

    name: str
    axes: str
    stationary: Tensor | None
    source: str


STRATEGIES: tuple[Strategy, ...] = (
    Strategy("data", "b", None, "every process has its samples; the kernel is gathered, as FSDP does"),
    Strategy("spatial", "dhw", None, "every process has its rows; halos are exchanged"),
    Strategy("channel", "gc", None, "input channels are split; partial sums are reduced"),
    Strategy("filter", "gk", None, "output channels are split; the input is gathered"),
    Strategy("data+filter", "bgk", None, "Kahira et al., HPDC'21"),
    Strategy("data+spatial", "bdhw", None, "Kahira et al., HPDC'21"),
    Strategy("stationary-x", "bgdhwc", "In", "Dryden et al., SC'19: x stays, so k is not split"),
    Strategy("stationary-y", "bgdhwk", "Out", "Dryden et al., SC'19: y stays, so c is not split"),
    Strategy("stationary-w", "bgdhwck", "Ker", "Dryden et al., SC'19: w stays"),
    Strategy("2D", "bgdhwk", "Out", "Li et al., SPAA'21: SUMMA, c is not split"),
    Strategy("2.5D", "bgdhwck", "Out", "Li et al., SPAA'21: c is split as far as memory allows"),
    Strategy("3D", "bgdhwck", "Out", "Li et al., SPAA'21: c is split freely"),
)


@dataclass(frozen=True)
class Alternative:
    """What a strategy costs on a layer: words of the most-receiving process, memory in bytes, seconds."""

    name: str
    grid: PerAxis | None
    words: int | None
    used_bytes: int | None
    feasible: bool
    why: str = ""  # why it is not feasible
    seconds: float | None = None  # on the machine that the plan was made for, with objective time


def alternatives(request: Request, least_work: int) -> list[Alternative]:
    """All named strategies for the same layer, processes, memory and work balance.

    `least_work` is w* over all grids, in iterations: what the balance of every strategy is held against.
    """
    cap = work_cap(least_work, request.balance)
    unpinned = replace(request, fixed={}, most_work=cap, exact=False)
    known = _Known()
    return [_alternative(strategy, unpinned, least_work, known) for strategy in STRATEGIES]


class _Known:
    """What was searched before: strategies that may split the same axes of a layer share their grids."""

    def __init__(self) -> None:
        self.within_memory: dict[tuple[str, tuple[Tensor, ...]], Optimum | None] = {}
        self.grids: dict[tuple[str, int | None], PerAxis] = {}

    def limited(self, request: Request) -> Optimum | None:
        """The best grid within the memory limit."""
        key = free_axes(request), request.stationary
        if key not in self.within_memory:
            self.within_memory[key] = search_or_none(request)
        return self.within_memory[key]

    def freely(self, request: Request) -> Optimum | None:
        """Without a memory limit the words of a grid are the same whichever tensor stays: search once."""
        key = free_axes(request), request.most_work
        if key in self.grids:
            return search_or_none(replace(request, fixed=self.grids[key]._asdict()))
        found = search_or_none(request)
        if found:
            self.grids[key] = found.grid
        return found


def free_axes(request: Request) -> str:
    """The axes that a request may split, of those that have an extent."""
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
