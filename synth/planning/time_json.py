"""The time of a plan on a machine as JSON data: the key `time` of a plan file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.layer.axes import AXES, ROW_MAJOR, Axis
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of

if TYPE_CHECKING:
    from synth.planning.plan import Plan
    from synth.search.fastest import Fastest


def time_json(plan: Plan, machine: Machine, found: Fastest) -> dict[str, object]:
    """The same as JSON data; seconds."""
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
