"""The text report of a plan: `synth.report(plan)`, which `synth plan` prints; `print(plan)` is a summary.

Sections: heading, decisions, ownership, schedule; then costs, certificates, time and the named strategies,
which `text_costs` writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from synth.base.text_table import indented, table, wrapped
from synth.base.units import show_words
from synth.layer.axes import AXES, DIMS, LACKED_INDEX, LACKS, ROW_MAJOR, TENSORS, Tensor
from synth.layer.passes import role_name
from synth.planning.decisions import phrases
from synth.planning.plan import Plan
from synth.planning.summary import heading
from synth.reports.text_costs import certificates, costs, strategy_lines, time_lines
from synth.schedule.pass_program import Gather, Loop, PassProgram, Reduce, Rows
from synth.schedule.schedule import Schedule

RANKS = "ranks are row-major, the last axis varies fastest"

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan


def report(plan: Plan | NetworkPlan) -> str:
    """The full report of the plan of a layer or a network as plain text, which `synth plan` prints.

    That of a layer is at most `text_table.WIDTH` (110) columns wide. Words are those that one process
    receives or holds, at most; docs/glossary.md explains the terms.
    """
    if not isinstance(plan, Plan):
        from synth.network.plan.report import report as network_report

        return network_report(plan)
    fastest = "each at its fastest; " if plan.timed else ""
    sections = [
        heading(plan),
        decided(plan),
        ["ownership  (before and after; every word has one owner)", *indented(ownership(plan))],
        ["schedule", *indented(schedule_lines(plan))],
        costs(plan),
        certificates(plan),
        [
            f"named strategies on this layer  ({fastest}words that one process receives, at most)",
            *indented(strategy_lines(plan)),
        ],
    ]
    if plan.timed:
        sections.insert(5, time_lines(plan, *plan.timed))
    return "\n\n".join("\n".join(wrapped(section)) for section in sections) + "\n"


def axes_table(plan: Plan) -> list[list[str]]:
    """Extents, grid, work block and tile: a row each behind the head, a column per axis of the layer."""
    shown = {"b", "c", "k", *plan.layer.spatial_axes, *(("g",) if plan.layer.groups > 1 else ())}
    axes = [axis for axis in AXES if axis in shown]
    named = {"extent N": plan.distribution.nest.extents, "grid P": plan.grid}
    named |= {"work W": plan.work, "tile T": plan.tile}
    rows = [[name, *(str(getattr(each, axis)) for axis in axes)] for name, each in named.items()]
    return [["", *axes], *rows]


def decided(plan: Plan) -> list[str]:
    """The table of axes, with remarks."""
    adds = plan.load * plan.nest.taps
    panels = f"{plan.first.panels} panel{'s' * (plan.first.panels > 1)} along {plan.first.stream}"
    if plan.first.steps > plan.first.panels:
        panels += f", {plan.first.steps} steps: {' > '.join(plan.first.loops())}"
    grids = "grids that cut output rows" if plan.turned else "any grid"
    least = f", {plan.load / plan.least_work:.3f} times the least of {grids}" if plan.least_work else ""
    kernel = "x".join(map(str, plan.layer.kernel)) or "1"
    padding = ", padding counted" if plan.nest.real_work < plan.nest.work else ""
    work = f"{show_words(adds)} multiply-adds{padding}{least}"
    remarks = ["", f"kernel {kernel}, not split", RANKS if plan.order == ROW_MAJOR else "", work, panels]
    rows = [[*row, remark] for row, remark in zip(axes_table(plan), remarks, strict=True)]
    return table(rows, right=range(1, len(rows[0]) - 1))


def ownership(plan: Plan) -> list[str]:
    """A line per tensor: the grid axes that cut each dimension, and the words of the largest shard."""
    from synth.schedule.memory import Footprints

    shards = Footprints(plan.distribution).shards
    rows = []
    for tensor in TENSORS:
        along = " ".join(_cut_text(plan, tensor))
        rows.append([tensor, along or "whole", f"{show_words(shards[tensor])} words each, at most"])
    return table(rows, right=[2])


def _cut_text(plan: Plan, tensor: Tensor) -> Iterable[str]:
    parts = dict(plan.distribution.shard_cuts[tensor])
    group = _group_name(plan, tensor)
    for dim in DIMS[tensor]:
        steps = []
        if dim in AXES and getattr(plan.grid, dim) > 1:
            steps.append(f"{getattr(plan.grid, dim)} ways over axis {dim}")
        if dim in parts:
            steps.append(f"{parts[dim]} ways over the {group}-group")
        if steps:
            yield f"{dim}: {', then '.join(steps)};"


def _group_name(plan: Plan, tensor: Tensor) -> str:
    axes = [axis for axis in LACKS[tensor] if getattr(plan.grid, axis) > 1]
    return "·".join(axes) or LACKED_INDEX[tensor]


def schedule_lines(plan: Plan) -> list[str]:
    """The schedule, pass by pass, a line per step."""
    if not plan.later:
        return _pass_lines(plan, plan.schedule)
    lines = []
    for schedule in plan.schedules:
        pass_plan = schedule.pass_plan
        stationary = role_name(pass_plan.pass_, pass_plan.stationary)
        reused = ", ".join(role_name(pass_plan.pass_, tensor) for tensor in sorted(pass_plan.reuses))
        saved = ", ".join(role_name(pass_plan.pass_, tensor) for tensor in sorted(pass_plan.saves))
        notes = [
            f"{stationary} stationary",
            *([f"reuses {reused}"] if reused else []),
            *([f"saves {saved}"] if saved else []),
        ]
        lines += [f"{pass_plan.pass_}: {'; '.join(notes)}", *indented(_pass_lines(plan, schedule))]
    return lines


def _pass_lines(plan: Plan, schedule: Schedule) -> list[str]:
    """The schedule tree of one pass, a line per node."""
    program, pass_plan = schedule.program, schedule.pass_plan
    lines = []
    for node in program.top():
        match node:
            case Rows(direction="fetch"):
                lines.append(f"halo    {node.tensor} rows from neighbours: {node.why}")
            case Gather():
                lines.append(f"gather  {_move(plan, program, node)}")
            case Loop():
                lines += _loop_lines(plan, schedule, node)
            case Reduce():
                lines.append(f"reduce  {_move(plan, program, node)}")
            case Rows():
                lines.append(f"return  {node.why}")
    if plan.overlap and pass_plan is plan.pass_plans[1]:
        written = role_name(pass_plan.pass_, pass_plan.written)
        lines.append(f"        reduce of {written} overlaps {plan.passes[2]}")
    return lines


def _loop_lines(plan: Plan, schedule: Schedule, loop: Loop) -> list[str]:
    program, pass_plan = schedule.program, schedule.pass_plan
    moved = {gather.tensor: _move(plan, program, gather) for gather in loop.gathers}
    streamed = (t for t in pass_plan.reads if pass_plan.structure.streams(t))
    inside = [moved.get(t, f"{role_name(pass_plan.pass_, t)} is in memory") for t in streamed]
    if loop.rotation:
        inside.append(f"{schedule.rotation_text} rotated: each rank starts at a panel of its own")
    meanwhile = "; the next panels are in flight" if moved and pass_plan.steps > 1 else ""
    inside.append(f"local kernel{meanwhile}")
    inside += [_move(plan, program, reduce) for reduce in loop.reduces]
    steps = f"{pass_plan.steps} step{'s' * (pass_plan.steps > 1)}"
    return [
        f"loop    {steps} ({' > '.join(loop.axes) or 'one tile'})",
        *(f"          {line}" for line in inside),
    ]


def _move(plan: Plan, program: PassProgram, node: Gather | Reduce) -> str:
    size, group = plan.distribution.group_size(node.tensor), "·".join(node.axes)
    verb = "broadcast" if isinstance(node, Gather) else "reduce-scattered"
    loads = program.loads(node)
    again = f", each tile {loads} times" if loads > 1 else ""
    return f"{node.role} {verb} over groups of {size} along {group}{again}: {node.why(group)}"


def stage_text(plan: Plan, stage: str) -> str:
    """The result of one stage of the derivation as text: `synth plan --stop-after`."""
    match stage:
        case "layer":
            return str(plan.layer)
        case "nest":
            lines = [
                f"{access.tensor}[{', '.join(map(str, access.dims))}]"
                for access in plan.nest.accesses.values()
            ]
            return "\n".join([str(plan.nest), *lines])
        case "optimum":
            return str(plan.closed_form)
        case "grid":
            decided = "".join(f"{each}, " for each in phrases(plan))
            return f"{plan.grid.shown()}: {plan.used_procs} of {plan.procs} processes, {decided}{plan.first}"
        case "distribution":
            return "\n".join(ownership(plan))
        case "schedule":
            return "\n".join(schedule_lines(plan))
        case _:
            return report(plan)
