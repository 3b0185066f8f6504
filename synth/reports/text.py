"""The report of a plan: what was decided, what it costs, what it gains. `str(plan)` is this text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from synth.base.text_table import indented, table, wrapped
from synth.base.units import show_bytes, show_words
from synth.bounds.closed_form import Eq4, best
from synth.layer.axes import AXES, DIMS, LACKED_INDEX, LACKS, ROW_MAJOR, TENSORS, PerAxis, Tensor
from synth.layer.passes import role_name
from synth.schedule.pass_program import Gather, Loop, PassProgram, Reduce, Rows
from synth.schedule.schedule import Schedule
from synth.search.strategies import Alternative

if TYPE_CHECKING:
    from synth.planning.plan import Plan


def report(plan: Plan) -> str:
    """The whole report, plain text of at most `text_table.WIDTH` columns."""
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
            *indented(compared(plan)),
        ],
    ]
    if plan.timed:
        from synth.reports.time_report import time_lines

        sections.insert(5, time_lines(plan, *plan.timed))
    return "\n\n".join("\n".join(wrapped(section)) for section in sections) + "\n"


def heading(plan: Plan) -> list[str]:
    """Layer, plan, algorithm, processes."""
    idle = plan.procs - plan.used_procs
    left = f", {idle} idle" if idle else ""
    stays = ", ".join(dict.fromkeys(pass_plan.stationary for pass_plan in plan.pass_plans))
    turned = [f"as the backward-data pass of {plan.layer.conv}, whose Out is the layer's input"]
    return [
        f"{plan.layer.name}: {plan.layer}",
        *(turned if plan.layer.transposed else []),
        f"plan {plan.id}: {plan.pass_}, {plan.algorithm} algorithm, {stays} stationary, "
        f"{plan.used_procs} of {plan.procs} processes{left}",
    ]


def _axes_of(plan: Plan) -> list[str]:
    shown = {"b", "c", "k", *plan.layer.spatial_axes, *(("g",) if plan.layer.groups > 1 else ())}
    return [axis for axis in AXES if axis in shown]


def decided(plan: Plan) -> list[str]:
    """Extents, grid, work block and tile, one row each, one column per axis."""
    axes = _axes_of(plan)

    def row(name: str, values: PerAxis, remark: str) -> list[str]:
        return [name, *(str(getattr(values, axis)) for axis in axes), remark]

    load = plan.work.size / plan.least_work if plan.least_work else 1.0
    adds = plan.work.size * plan.nest.taps
    panels = f"{plan.first.panels} panel{'s' * (plan.first.panels > 1)} along {plan.first.stream}"
    if plan.first.steps > plan.first.panels:
        panels += f", {plan.first.steps} steps: {' > '.join(plan.first.loops())}"
    kernel = "x".join(map(str, plan.layer.kernel)) or "1"
    rows = [
        ["", *axes, ""],
        row("extent N", plan.nest.extents, f"kernel {kernel}, not split"),
        row("grid P", plan.grid, ranks_run(plan)),
        row("work W", plan.work, f"{show_words(adds)} multiply-adds, {load:.3f} times the least of any grid"),
        row("tile T", plan.tile, panels),
    ]
    return table(rows, right=range(1, len(axes) + 1))


def ranks_run(plan: Plan) -> str:
    """How the axes run over the ranks."""
    if plan.order == ROW_MAJOR:
        return "ranks are row-major, the last axis varies fastest"
    split = [axis for axis in plan.order if getattr(plan.grid, axis) > 1]
    return f"ranks run by {', '.join(split)}, {split[-1]} fastest"


def ownership(plan: Plan) -> list[str]:
    """Per tensor: which grid axes cut which dimension, and the largest share."""
    from synth.schedule.memory import Footprints

    shares = Footprints(plan.distribution).shares
    rows = []
    for tensor in TENSORS:
        along = " ".join(_cut_text(plan, tensor))
        rows.append([tensor, along or "whole", f"{show_words(shares[tensor])} words each, at most"])
    return table(rows, right=[2])


def _cut_text(plan: Plan, tensor: Tensor) -> Iterable[str]:
    parts = dict(plan.distribution.shares[tensor])
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
    """The schedule in a few lines, pass by pass."""
    if not plan.later:
        return _pass_lines(plan, plan.schedule)
    lines = []
    for schedule in plan.schedules:
        pass_plan = schedule.pass_plan
        stays = role_name(pass_plan.pass_, pass_plan.stationary)
        kept = ", ".join(role_name(pass_plan.pass_, tensor) for tensor in sorted(pass_plan.reuses))
        keeps = ", ".join(role_name(pass_plan.pass_, tensor) for tensor in sorted(pass_plan.saves))
        notes = [
            f"{stays} stationary",
            *([f"finds {kept}"] if kept else []),
            *([f"keeps {keeps}"] if keeps else []),
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
                lines.append(f"expand  {_move(plan, program, node)}")
            case Loop():
                lines += _loop_lines(plan, schedule, node)
            case Reduce():
                lines.append(f"reduce  {_move(plan, program, node)}")
            case Rows():
                lines.append(f"return  {node.why}")
    if plan.overlap and pass_plan is plan.pass_plans[1]:
        written = role_name(pass_plan.pass_, pass_plan.written)
        lines.append(f"        the last sums of {written} travel under {plan.passes[2]}")
    return lines


def _loop_lines(plan: Plan, schedule: Schedule, loop: Loop) -> list[str]:
    program, pass_plan = schedule.program, schedule.pass_plan
    moved = {gather.tensor: _move(plan, program, gather) for gather in loop.gathers}
    streamed = (t for t in pass_plan.reads if pass_plan.structure.streams(t))
    inside = [moved.get(t, f"{role_name(pass_plan.pass_, t)} is at hand") for t in streamed]
    if loop.rotation:
        inside.append(f"ranks that share {schedule.rotation_text} are at different panels")
    meanwhile = "; the next panels travel meanwhile" if moved and pass_plan.steps > 1 else ""
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


def costs(plan: Plan) -> list[str]:
    """Words received and memory held by the most loaded process."""
    words, size = plan.words, plan.nest.word_bytes
    halo = f" (of which halo {show_words(words['halo'])})" if words["halo"] else ""
    memory = plan.memory
    limit = f" of {show_bytes(plan.limit_bytes)}" if plan.limit_bytes else ""
    phases = ", ".join(f"{name} {show_words(n)}" for name, n in memory_stages(plan).items())
    received = ", ".join(
        f"{name} {show_words(words[name.lower()])}{halo if name == 'In' else ''}" for name in TENSORS
    )
    total = words["total"]
    return [
        "words received per process, at most",
        f"  {received}; together {show_words(total)} words = {show_bytes(total * size)}",
        "memory per process, at most",
        f"  {show_words(memory.words)} words = {show_bytes(plan.used_bytes)}{limit}  ({phases})",
    ]


def memory_stages(plan: Plan) -> dict[str, int]:
    """Words that a process holds at most, stage by stage; nothing to gather, no such stage."""
    memory = plan.memory
    gathers = any(schedule.program.gathers for schedule in plan.schedules)
    kinds = {
        "shares": memory.shares,
        "halo": memory.halo,
        "gather": memory.expand if gathers else 0,
        "loop": memory.loop,
        "reduce": memory.reduce,
    }
    if max(kinds.values()) < memory.words:  # nothing but shares and the result
        kinds["shares and result"] = memory.words
    return {name: words for name, words in kinds.items() if words}


def certificates(plan: Plan) -> list[str]:
    """Lower bound, ratio, closed form."""
    ratio = "none: the bound is 0" if plan.ratio is None else f"{plan.ratio:.3f}"
    form = plan.closed_form
    binding = ", ".join(form.binding) or "none"
    return [
        "certificates",
        f"  universal lower bound   {show_words(plan.bound.words)} received words; plan / bound = {ratio}",
        f"  closed form             {show_words(form.cost)} accessed words (owned ones count, too), "
        f"{form.stationary} stationary",
        f"                          Eq. 4 of Li et al., SPAA'21, case {form.case} ({form.algorithm}) "
        f"at T_k={form.t_k:.4g}, T_x={form.t_x:.4g}",
        f"                          binding: {binding}",
    ]


def compared(plan: Plan) -> list[str]:
    """The named strategies beside the plan."""
    total = plan.words["total"]
    seconds = plan.timed[1].seconds if plan.timed else None

    def row(each: Alternative) -> list[str]:
        if each.words is None or each.grid is None or each.used_bytes is None:
            return [each.name, *["-"] * (4 if seconds is None else 6), each.why]
        over = f"{each.words / total:.2f}" if total else "-"
        cells = [each.name, each.grid.shown(), show_words(each.words), over, show_bytes(each.used_bytes)]
        if seconds and each.seconds:
            cells += [f"{1e3 * each.seconds:.4g} ms", f"{each.seconds / seconds:.2f}"]
        return [*cells, each.why]

    time = [] if seconds is None else ["time", "time / plan"]
    mine = Alternative("this plan", plan.grid, total, plan.used_bytes, True, "", seconds)
    rows = [["strategy", "grid", "words", "/ plan", "memory", *time, ""], row(mine)]
    return table([*rows, *map(row, plan.alternatives)], right=[2, 3, 4, 5, 6] if time else [2, 3, 4])


STAGES = ("layer", "nest", "optimum", "grid", "distribution", "schedule", "plan")


def stage_text(made: Plan, stage: str) -> str:
    """What one stage of the derivation produced, for people: `--stop-after`."""
    match stage:
        case "layer":
            return str(made.layer)
        case "nest":
            lines = [
                f"{access.tensor}[{', '.join(map(str, access.dims))}]"
                for access in made.nest.accesses.values()
            ]
            return "\n".join([str(made.nest), *lines])
        case "optimum":
            limit = made.limit_bytes
            words = None if limit is None else limit // made.nest.word_bytes
            return str(best(Eq4.of(made.nest, made.procs, words)))
        case "grid":
            run = "" if made.order == ROW_MAJOR else f"{ranks_run(made)}, "
            return f"{made.grid.shown()}: {made.used_procs} of {made.procs} processes, {run}{made.first}"
        case "distribution":
            return "\n".join(ownership(made))
        case "schedule":
            return "\n".join(schedule_lines(made))
        case _:
            return report(made)
