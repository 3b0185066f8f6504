"""The named strategies under the objective `time`: each at its fastest on the machine of a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from synth.base.errors import InfeasibleError
from synth.layer.axes import AXES, ROW_MAJOR, Tensor
from synth.machine.hierarchy import Machine
from synth.search.branch_and_bound import Request
from synth.search.fastest import Fastest, fastest
from synth.search.strategies import STRATEGIES, Alternative, Strategy, free_axes

if TYPE_CHECKING:
    from synth.planning.plan import Plan


def timed_alternatives(plan: Plan, machine: Machine) -> list[Alternative]:
    """All named strategies, each with the grid and the schedule that take the least time.

    As under the objective words, a strategy that fits no memory is shown without the limit, and marked; 3D
    takes all the memory it can use. Work is left to time itself: no strategy is marked for its balance.
    """
    known = _Found(machine)
    return [_alternative(plan, known, strategy) for strategy in STRATEGIES]


class _Found:
    """The fastest plan of a request, None where there is none: strategies that may do the same share it."""

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


def _alternative(plan: Plan, known: _Found, strategy: Strategy) -> Alternative:
    fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in strategy.axes}
    asked = replace(plan.request, fixed=fixed, exact=False)
    if strategy.stationary:
        asked = replace(asked, stationary=(strategy.stationary,))
    found = None if strategy.name == "3D" else known.plan(asked)
    found = found or known.plan(replace(asked, limit_words=None))
    if found is None:
        return Alternative(strategy.name, None, None, None, False, "no such grid")
    first, *later = found.pass_plans
    made = replace(plan, grid=found.grid, first=first, later=tuple(later), order=ROW_MAJOR)
    limit = plan.limit_words
    why = "" if limit is None or made.used_words <= limit else "needs more than the memory limit"
    words, seconds = made.words["total"], found.seconds
    return Alternative(strategy.name, found.grid, words, made.used_bytes, not why, why, seconds)
