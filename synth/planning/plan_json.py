"""A plan as JSON data: what `synth plan --json` writes. `plan_file` reads it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synth.base.user_files import digest_of
from synth.bounds.assumptions import TILED
from synth.layer.axes import AXES, ROW_MAJOR, Axis, PerAxis
from synth.layer.layer import Layer
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of
from synth.planning.comparison import compare
from synth.planning.decisions import decided

if TYPE_CHECKING:
    from synth.planning.plan import Plan
    from synth.search.fastest import Fastest

SCHEMA = "synth.plan/1"
UNREAD = ("relaxation", "alternatives", "time")  # results of other searches: no decision, and never read back
PROVEN = "proven_words"  # a result of the search, in files of plans that are not proven the fewest


def axes_json(plan_layer: Layer, values: PerAxis) -> dict[str, int]:
    """Axis -> value with the keys that the layer has: b, c, h, w, k always, d for conv3d, g if grouped."""
    left_out = {"d"} if plan_layer.kind != "conv3d" else set()
    left_out |= {"g"} if plan_layer.groups == 1 else set()
    order = ("b", "g", "c", "d", "h", "w", "k")
    return {axis: getattr(values, axis) for axis in order if axis not in left_out}


def to_json(plan: Plan, relaxation: float | None = None) -> dict[str, Any]:
    """The plan as JSON data; `words` are integers, memory is in words and bytes."""
    layer = plan.layer
    timed = {"time": time_json(plan, *plan.timed)} if plan.timed else {}
    data = {
        **exact_json(plan),
        "algorithm": plan.algorithm,
        **float_json(plan),
        **({} if plan.proven_words is None else {PROVEN: plan.proven_words}),
        "relaxation": None if relaxation is None else {"cost": relaxation},
        "alternatives": [
            {
                "name": each.name,
                "grid": None if each.grid is None else axes_json(layer, each.grid),
                "words": each.words,
                "memory_bytes": each.used_bytes,
                "feasible": each.feasible,
                "why": each.why,
                **({} if each.seconds is None else {"seconds": each.seconds}),
            }
            for each in compare(plan)
        ],
        **timed,
    }
    return {**data, "digest": unread_digest(data)}


def unread_digest(data: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of what the decisions do not determine, so that an edit is noticed."""
    unread = {key: data.get(key) for key in UNREAD} | ({PROVEN: data[PROVEN]} if PROVEN in data else {})
    return digest_of(unread)


def float_json(plan: Plan) -> dict[str, Any]:
    """The bounds, which follow from the decisions up to rounding."""
    form = plan.closed_form
    return {
        "bounds": {
            "universal": plan.bound.words,
            "paper": plan.paper_bound,
            "ratio": plan.ratio,
        },
        "assumptions": {
            "universal": plan.assumptions,
            "paper": TILED,
            "most_work": plan.bound.most_work,
            "fair_work": plan.fair_bound.most_work,
            "universal_at_fair_work": plan.fair_bound.words,
            "universal_with_surface": plan.surface_bound,
        },
        "closed_form": {
            "case": form.case,
            "cost": form.cost,
            "T_k": form.t_k,
            "T_x": form.t_x,
            "stationary": form.stationary.lower(),
            "binding": list(form.binding),
        },
        "paper_cost": plan.paper_cost,
    }


def exact_json(plan: Plan) -> dict[str, Any]:
    """The decisions and the whole numbers that follow from them: what `parse_plan` derives anew."""
    layer, pass_plan = plan.layer, plan.first
    return {
        "schema": SCHEMA,
        "id": plan.id,
        "name": layer.name,
        "problem": layer.to_json(),
        "procs": plan.procs,
        "used_procs": plan.used_procs,
        "pass": plan.pass_,
        "stationary": pass_plan.stationary.lower(),
        "grid": axes_json(layer, plan.grid),
        **decided(plan, file=True),
        "work": axes_json(layer, plan.work),
        "tile": axes_json(layer, plan.tile),
        "panels": pass_plan.panels,
        "steps": pass_plan.steps,
        "passes": [each.to_json() for each in plan.pass_plans],
        "words": plan.words,
        "memory": {"words": plan.used_words, "bytes": plan.used_bytes, "limit_bytes": plan.limit_bytes},
        "balance": {
            "allowed": plan.balance,
            "work": plan.load,
            "least_work": plan.least_work,
            "exact_procs": plan.exact_procs,
            **({"pinned": list(plan.pinned)} if plan.pinned else {}),
        },
    }


def time_json(plan: Plan, machine: Machine, found: Fastest) -> dict[str, object]:
    """The key `time`: seconds on the machine that a plan was made for."""
    inside = [a for a in AXES if getattr(plan.grid, a) > 1 and _inside(plan, machine, a)]
    return {
        "machine": machine.name,
        "seconds": found.seconds,
        "axes_inside": {machine.levels[0].name: inside},
        "passes": [
            {
                "pass": time.pass_,
                "seconds": time.total,
                "compute": time.compute,
                "communication": time.comm,
                "exposed": time.exposed,
                "panels": time.panels,
                "parts": [{"tensor": t, "algorithm": a, "seconds": s} for t, a, s in time.parts],
            }
            for time in found.times
        ],
        "faster_order": list(found.order) if found.order_seconds < found.seconds * (1 - 1e-9) else None,
    }


def _inside(plan: Plan, machine: Machine, axis: Axis) -> bool:
    group = group_of(machine, plan.grid, ROW_MAJOR, (axis,))
    return [level for level, _ in group.units()] == [0]
