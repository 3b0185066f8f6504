"""The time of a plan on a machine, for people: `--objective time`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.base.text_table import table
from synth.layer.axes import LACKS, ROW_MAJOR, TENSORS
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of

if TYPE_CHECKING:
    from synth.planning.plan import Plan
    from synth.search.fastest import Fastest


def time_lines(plan: Plan, machine: Machine, found: Fastest) -> list[str]:
    """Seconds, what each tensor's communication costs and where it runs, and a faster placement."""
    lines = [f"time on {machine}"]
    for time in found.times:
        lines.append(
            f"  {time.pass_}: {time.total * 1e6:.1f} µs = computing {time.compute * 1e6:.1f} µs + exposed "
            f"communication {time.exposed * 1e6:.1f} µs (of {time.comm * 1e6:.1f} µs in all)"
        )
        rows = [_row(plan, machine, *part) for part in time.parts]
        lines += [f"    {line}" for line in table(rows, right=[1])] if rows else ["    nothing travels"]
    if found.order_seconds < found.seconds * (1 - 1e-9):
        order = "".join(axis for axis in found.order if getattr(plan.grid, axis) > 1)
        lines.append(
            f"  ranks placed by {order} (last fastest) would take {found.order_seconds * 1e6:.1f} µs"
        )
    return lines


def _row(plan: Plan, machine: Machine, name: str, algorithm: str, seconds: float) -> list[str]:
    where = ""
    if name in TENSORS:
        group = group_of(machine, plan.grid, ROW_MAJOR, LACKS[name])
        crossed = ", ".join(f"{units} along {machine.levels[level].name}" for level, units in group.units())
        where = f"groups of {group.size}: {crossed}"
    return [name, f"{seconds * 1e6:.1f} µs", algorithm, where]
