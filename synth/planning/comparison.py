"""The named strategies of the literature on the layer of a plan, under the plan's objective.

A strategy that exceeds the work balance or the memory limit is reported with its cost and marked as not
feasible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from synth.base.errors import InfeasibleError
from synth.layer.axes import AXES, ROW_MAJOR, PerAxis, Tensor
from synth.machine.hierarchy import Machine
from synth.schedule.distribution import Distribution
from synth.search.branch_and_bound import search_or_floor
from synth.search.fastest import fastest
from synth.search.grids import Space, work_cap
from synth.search.lean_grids import STEPS
from synth.search.request import Optimum, Request
from synth.search.strategies import STRATEGIES, Strategy

if TYPE_CHECKING:
    from synth.planning.plan import Plan

THIS = "this plan"
LEAN_STEPS = STEPS // 10  # for a grid of a strategy that fits the memory, if its search ends without one


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
    # words that no schedule of the same passes, load and memory limit receives fewer of, in a process
    bound: float | None = None


def compare(plan: Plan) -> list[Alternative]:
    """What every named strategy costs on the layer, processes, memory and work balance of a plan.

    One `Alternative` per strategy: its grid, the words that the most-receiving process receives, the bytes
    that a process uses at most, whether it is feasible or `why` not, and the lower bound at its own load: a
    strategy with more work in one process may receive fewer words than the bound of the plan.
    `search.strategies` has sources.

    Objective time: each strategy with the grid and the schedule that take the least time, on the machine of
    the plan; its work balance is not restricted. Otherwise each with the fewest received words.
    A strategy that exceeds the memory limit is shown without the limit, and marked; 3D takes all the memory
    that it can use.
    """
    searches = _Searches(plan)
    return [_alternative(strategy, searches) for strategy in STRATEGIES]


def compared(plan: Plan) -> list[Alternative]:
    """The plan itself as the first row, and those of `compare`."""
    seconds = plan.timed[1].seconds if plan.timed else None
    words, bound = plan.words["total"], plan.bound.words
    return [Alternative(THIS, plan.grid, words, plan.used_bytes, True, "", seconds, bound), *compare(plan)]


def by_words(rows: list[Alternative]) -> list[Alternative]:
    """Rows of `compared`, fewest words first; those that have no plan stand last."""
    return sorted(rows, key=lambda row: (row.words is None, row.words, row.name != THIS))


def unpinned_request(plan: Plan) -> Request:
    """The search that a plan answers, with any grid, any stationary tensor and idle processes allowed."""
    return Request(
        plan.layer.nest,
        plan.procs,
        plan.limit_words,
        balance=plan.balance,
        pass_=plan.task,
        transposed=plan.layer.transposed,
        gradients=plan.gradients,
    )


def _alternative(strategy: Strategy, searches: _Searches) -> Alternative:
    request = replace(searches.request, fixed=strategy.fixed)
    if strategy.stationary:
        request = replace(request, stationary=(strategy.stationary,))
    free = replace(request, limit_words=None)
    within_memory = None if strategy.name == "3D" else searches.best(request)  # 3D has no memory limit
    found = within_memory or searches.best(free)
    if found:
        fits = request.limit_words is None or found.used_words <= request.limit_words
        why = "" if fits else searches.unfit(request)
    else:
        found, load = searches.overloaded(free)
        if found is None:
            return Alternative(strategy.name, None, None, None, False, "no such grid")
        why = f"{load:.2f} times the least work of any grid"
    used_bytes = found.used_words * request.nest.word_bytes
    load = Distribution(request.nest, found.grid).most_real_work
    limit = request.limit_words if found is within_memory else None
    bound = searches.plan.bound_at(load, limit).words
    return Alternative(strategy.name, found.grid, found.words, used_bytes, not why, why, found.seconds, bound)


@dataclass(frozen=True)
class _Best:
    """The best plan that a search found: its grid, words and seconds (objective time only)."""

    grid: PerAxis
    words: int  # the most that a process receives
    used_words: int  # of memory, per process
    seconds: float | None = None


class _Searches:
    """The searches of one comparison. Strategies that may split the same axes of a layer share results."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.least_work = _least_work(plan)  # w*, in iterations
        self.request = unpinned_request(plan)
        if not plan.timed:
            self.request = replace(self.request, most_work=work_cap(self.least_work, plan.balance))
        self.known: dict[tuple[str, tuple[Tensor, ...], int | None], _Best | None] = {}
        self.unproven: set[tuple[str, tuple[Tensor, ...]]] = set()  # the search ended early, with no plan
        self.grids: dict[str, PerAxis] = {}  # free axes -> the grid with the fewest words in unlimited memory

    def best(self, request: Request) -> _Best | None:
        """The best plan of a request within its work balance and memory, or None."""
        key = _free_axes(request), request.stationary, request.limit_words
        if key not in self.known:
            timed = self.plan.timed
            self.known[key] = self._fastest(request, timed[0]) if timed else self._fewest_words(request)
        return self.known[key]

    def unfit(self, request: Request) -> str:
        """Why a request has no plan within the memory limit."""
        unproven = (_free_axes(request), request.stationary) in self.unproven
        return "no plan within the memory limit was found" if unproven else "needs more than the memory limit"

    def overloaded(self, request: Request) -> tuple[_Best | None, float]:
        """(the plan with the least work, its work as a multiple of w*), where none keeps the balance.

        The plan is None if no grid exists, and for objective time, which restricts no work balance.
        """
        found = None
        if not self.plan.timed:
            found, _ = search_or_floor(replace(request, most_work=None, balance=0.0), LEAN_STEPS)
        return (_best_of(found), found.work / self.least_work) if found else (None, 0.0)

    def _fewest_words(self, request: Request) -> _Best | None:
        """The plan with the fewest received words.

        Without a memory limit, the words of a grid do not depend on the stationary tensor. One search over
        the grids is then enough for all stationary tensors.
        """
        axes = _free_axes(request)
        if request.limit_words is None and axes in self.grids:
            request = replace(request, fixed=self.grids[axes]._asdict())
        own = self._own(request)
        if own:
            found, _ = search_or_floor(replace(request, fewer_than=own.words), lean_steps=0)
            return _best_of(found) if found else own
        found, left_words = search_or_floor(request, LEAN_STEPS)
        if found is None and left_words is not None:
            self.unproven.add((axes, request.stationary))
        if found and request.limit_words is None:
            self.grids[axes] = found.grid
        return _best_of(found) if found else None

    def _own(self, request: Request) -> _Best | None:
        """The plan that is compared, if it is one that a request under its memory limit may find."""
        plan = self.plan
        allowed = (
            request.limit_words is not None
            and not (plan.turned or plan.classes)
            and all(plan.grid._asdict()[axis] == parts for axis, parts in request.fixed.items())
            and {each.stationary for each in plan.pass_plans} <= set(request.stationary)
            and plan.load <= (request.most_work or plan.load)
        )
        return _Best(plan.grid, plan.words["total"], plan.used_words) if allowed else None

    def _fastest(self, request: Request, machine: Machine) -> _Best | None:
        """The plan with the least time on a machine."""
        try:
            found = fastest(request, machine)
        except InfeasibleError:
            return None
        first, *later = found.pass_plans
        made = replace(
            self.plan, grid=found.grid, first=first, later=tuple(later), order=ROW_MAJOR, classes=()
        )
        return _Best(found.grid, made.words["total"], made.used_words, found.seconds)


def _least_work(plan: Plan) -> int:
    """w* of the layer without residue classes, which no named strategy has."""
    if plan.classes:
        return Space(plan.layer.nest, plan.procs, {}, plan.exact_procs).least_work or plan.work.size
    return plan.work.size if plan.least_work is None else plan.least_work


def _best_of(found: Optimum) -> _Best:
    return _Best(found.grid, found.tiling.words, found.tiling.used_words)


def _free_axes(request: Request) -> str:
    """The axes with extent > 1 that a request may split."""
    sizes = request.nest.extents._asdict()
    return "".join(axis for axis in AXES if axis not in request.fixed and sizes[axis] > 1)
