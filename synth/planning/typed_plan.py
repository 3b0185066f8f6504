"""A plan that a user gives in one line, instead of a search."""

from __future__ import annotations

from synth.base.doors import option
from synth.base.errors import UsageError, said_of
from synth.layer.layer import Layer
from synth.layer.passes import Task
from synth.planning.decisions import Reading
from synth.planning.one_line import read_line
from synth.planning.plan import Plan
from synth.planning.plan_consistency import decision_faults
from synth.planning.plan_entry import ScheduleEntry, converted, schedule_of, with_decisions
from synth.planning.request import PlanRequest


def typed_plan(request: PlanRequest, layer: Layer, task: Task, ghosts: bool = True) -> Plan:
    """The plan that `request.as_` gives in one line. Raises `UsageError` where it is none of the layer.

    task: what the nest of the layer computes. No search is made, so the plan knows no least work.
    """

    with said_of(option("as_", request.as_)):
        return _read(request, layer, task, ghosts)


def _read(request: PlanRequest, layer: Layer, task: Task, ghosts: bool) -> Plan:
    data = read_line(request.as_ or "", task)
    data |= {"procs": request.procs, "pass": request.pass_}
    entry = converted(data, with_decisions(ScheduleEntry))
    plan = Plan(
        layer,
        **schedule_of(entry, Reading(layer, entry.grid)),
        limit_bytes=request.limit_bytes,
        balance=request.balance,
        exact_procs=request.exact_procs,
        ghosts=ghosts,
    )
    for fault in decision_faults(plan):
        raise UsageError(fault)
    if plan.pass_ == "training" and plan.gradients != tuple(sorted(request.gradient_tensors)):
        raise UsageError(f"its passes compute other gradients than {option('gradients', request.gradients)}")
    return plan
