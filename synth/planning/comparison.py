"""The named strategies of the literature on the layer of a plan, under the plan's objective."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from synth.base.errors import InfeasibleError
from synth.layer.axes import AXES, ROW_MAJOR, Tensor
from synth.machine.hierarchy import Machine
from synth.search.branch_and_bound import Request
from synth.search.fastest import Fastest, fastest
from synth.search.strategies import STRATEGIES, Alternative, Strategy, alternatives, free_axes

if TYPE_CHECKING:
    from synth.planning.plan import Plan


def compare(plan: Plan) -> list[Alternative]:
    """What every named strategy costs on the layer, processes, memory and work balance of a plan.

    Objective time: each strategy with the grid and the schedule that take the least time, on the machine of
    the plan; its work balance is not restricted. Otherwise each with the fewest received words.
    A strategy that exceeds the memory limit is shown without the limit, and marked; 3D takes all the memory
    that it can use.
    """
    request = search_request(plan)
    if plan.timed:
        known = _Found(plan.timed[0])
        return [_fastest_alternative(plan, request, known, strategy) for strategy in STRATEGIES]
    return alternatives(request, plan.work.size if plan.least_work is None else plan.least_work)


def search_request(plan: Plan) -> Request:
    """The search that a plan answers, with no part of the grid fixed and any stationary tensor."""
    return Request(
        plan.nest,
        plan.procs,
        plan.limit_words,
        balance=plan.balance,
        exact=plan.exact_procs,
        pass_=plan.task,
        transposed=plan.layer.transposed,
        gradients=plan.gradients,
    )


class _Found:
    """Requests that were answered: strategies that may split the same axes share their fastest plan."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.known: dict[tuple[str, tuple[Tensor, ...], int | None], Fastest | None] = {}

    def plan(self, request: Request) -> Fastest | None:
        key = free_axes(request), tuple(request.stationary), request.limit_words
        if key not in self.known:
            try:
                self.known[key] = fastest(request, self.machine)
            except InfeasibleError:
                self.known[key] = None
        return self.known[key]


def _fastest_alternative(plan: Plan, request: Request, known: _Found, strategy: Strategy) -> Alternative:
    fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in strategy.axes}
    within = replace(request, fixed=fixed, exact=False)
    if strategy.stationary:
        within = replace(within, stationary=(strategy.stationary,))
    found = None if strategy.name == "3D" else known.plan(within)
    found = found or known.plan(replace(within, limit_words=None))
    if found is None:
        return Alternative(strategy.name, None, None, None, False, "no such grid")
    first, *later = found.pass_plans
    made = replace(plan, grid=found.grid, first=first, later=tuple(later), order=ROW_MAJOR)
    limit = plan.limit_words
    why = "" if limit is None or made.used_words <= limit else "needs more than the memory limit"
    return Alternative(
        strategy.name,
        found.grid,
        made.words["total"],
        made.used_bytes,
        not why,
        why,
        found.seconds,
    )
