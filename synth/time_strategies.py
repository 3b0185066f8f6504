"""The named strategies under the objective `time`: each at its fastest on the machine of a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from synth.axes import AXES, ROW_MAJOR
from synth.errors import InfeasibleError
from synth.machine.levels import Machine
from synth.search import Request
from synth.strategies import STRATEGIES, Alternative, Strategy
from synth.time_search import Fastest, fastest

if TYPE_CHECKING:
    from synth.plan import Plan


def timed_alternatives(plan: Plan, machine: Machine) -> list[Alternative]:
    """All named strategies, each with the grid and the schedule that take the least time.

    As under the objective words, a strategy that fits no memory is shown without the limit, and marked; 3D
    takes all the memory it can use. Work is left to time itself: no strategy is marked for its balance.
    """
    return [_alternative(plan, machine, strategy) for strategy in STRATEGIES]


def _alternative(plan: Plan, machine: Machine, strategy: Strategy) -> Alternative:
    fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in strategy.axes}
    asked = replace(plan.request, fixed=fixed, exact=False)
    if strategy.stationary:
        asked = replace(asked, stationary=(strategy.stationary,))
    found = None if strategy.name == "3D" else _found(asked, machine)
    found = found or _found(replace(asked, memory=None), machine)
    if found is None:
        return Alternative(strategy.name, None, None, None, False, "no such grid")
    first, *later = found.pass_plans
    made = replace(plan, grid=found.grid, first=first, later=tuple(later), order=ROW_MAJOR)
    limit = plan.memory_words
    why = "" if limit is None or made.memory.words <= limit else "needs more than the memory limit"
    words, seconds = made.words["total"], found.seconds
    return Alternative(strategy.name, found.grid, words, made.memory_bytes, not why, why, seconds)


def _found(request: Request, machine: Machine) -> Fastest | None:
    try:
        return fastest(request, machine)
    except InfeasibleError:
        return None
