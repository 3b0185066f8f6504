"""The second half of the text report: costs, certificates, time and the named strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.base.text_table import table
from synth.base.units import show_bytes, show_words
from synth.bounds.assumptions import SCHEDULES
from synth.layer.axes import LACKS, ROW_MAJOR, TENSORS
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of
from synth.planning.comparison import Alternative, compared
from synth.planning.summary import not_proven, ratio_text

if TYPE_CHECKING:
    from synth.planning.plan import Plan
    from synth.search.fastest import Fastest


def costs(plan: Plan) -> list[str]:
    """The words that the most loaded process receives and holds."""
    words, size = plan.words, plan.nest.word_bytes
    halo = f" (of which halo {show_words(words['halo'])})" if words["halo"] else ""
    memory = plan.memory
    limit = f" of {show_bytes(plan.limit_bytes)}" if plan.limit_bytes else ""
    phases = ", ".join(f"{name} {show_words(n)}" for name, n in memory_stages(plan).items())
    received = ", ".join(
        f"{name} {show_words(words[name.lower()])}{halo if name == 'In' and not plan.turned else ''}"
        for name in TENSORS
    )
    received += halo.replace("which", "In and Out") if plan.turned else ""
    total = words["total"]
    return [
        "words received per process, at most",
        f"  {received}; together {show_words(total)} words = {show_bytes(total * size)}",
        *(f"  {line}" for line in not_proven(plan)),
        "memory per process, at most",
        f"  {show_words(memory.words)} words = {show_bytes(plan.used_bytes)}{limit}  ({phases})",
    ]


def memory_stages(plan: Plan) -> dict[str, int]:
    """Stage -> the most words that any process holds in it; stages that hold nothing are left out."""
    memory = plan.memory
    gathers = any(schedule.program.gathers for schedule in plan.schedules)
    kinds = {
        "shards": memory.shards,
        "halo": memory.halo,
        "gather": memory.expand if gathers else 0,
        "loop": memory.loop,
        "reduce": memory.reduce,
    }
    if max(kinds.values()) < memory.words:  # the maximum is none of the stages: the shards and the result
        kinds["shards and result"] = memory.words
    return {name: words for name, words in kinds.items() if words}


def certificates(plan: Plan) -> list[str]:
    """The lower bound, its assumptions, its ratio to the plan, and the closed form."""
    ratio = ratio_text(plan.words["total"], plan.bound)
    form, indent = plan.closed_form, " " * 26
    binding = ", ".join(form.binding) or "none"
    return [
        "certificates",
        f"  universal lower bound   {show_words(plan.bound.words)} received words; plan / bound = {ratio}",
        *surface(plan),
        *(f"{indent}{line}" for line in loads(plan)),
        f"{indent}for every schedule with",
        *(f"{indent}- {phrase}" for phrase in SCHEDULES),
        f"  closed form             {show_words(form.cost)} accessed words (owned ones count, too), "
        f"{form.stationary} stationary",
        f"{indent}Eq. 4 of Li et al., SPAA'21, case {form.case} ({form.algorithm}) "
        f"at T_k={form.t_k:.4g}, T_x={form.t_x:.4g}",
        f"{indent}for tiled schedules; binding: {binding}",
    ]


def surface(plan: Plan) -> list[str]:
    """The bound with the surface of regions, where it is larger."""
    words, total = plan.surface_bound, plan.words["total"]
    if words <= plan.bound.words * (1 + 1e-4):
        return []
    return [
        f"  with surface of regions {show_words(words)} received words; plan / bound = {total / words:.3f}"
    ]


def loads(plan: Plan) -> list[str]:
    """The work of a process that the bound assumes, and the bound for equal work.

    Bounds leave out multiply-adds on padding, which the work of the table of axes counts.
    """
    most, fair = plan.bound, plan.fair_bound
    each = " and pass" if plan.pass_ == "training" else ""
    padding = ", padding left out" if plan.nest.real_work < plan.nest.work else ""
    here = f"at this load: at most {show_words(most.most_work)} multiply-adds in a process{each}{padding}"
    if fair.most_work == most.most_work:
        return [f"{here} (fair)"]
    total = plan.words["total"]
    ratio = f"; plan / bound = {ratio_text(total, fair)}" if fair.words > 0 else ""
    words = f"at fair load, {show_words(fair.most_work)}: {show_words(fair.words)} words{ratio}"
    return [here, words]


def strategy_lines(plan: Plan) -> list[str]:
    """A table of the plan and the named strategies."""
    total = plan.words["total"]
    seconds = plan.timed[1].seconds if plan.timed else None

    def row(each: Alternative) -> list[str]:
        if each.words is None or each.grid is None or each.used_bytes is None:
            return [each.name, *["-"] * (5 if seconds is None else 7), each.why]
        over = f"{each.words / total:.2f}" if total else "-"
        bound = "-" if each.bound is None else show_words(each.bound)
        cells = [
            each.name,
            each.grid.shown(),
            show_words(each.words),
            over,
            bound,
            show_bytes(each.used_bytes),
        ]
        if seconds and each.seconds:
            cells += [f"{1e3 * each.seconds:.4g} ms", f"{each.seconds / seconds:.2f}"]
        return [*cells, each.why]

    time = [] if seconds is None else ["time", "time / plan"]
    head = ["strategy", "grid", "words", "/ plan", "bound", "memory", *time, ""]
    return table([head, *map(row, compared(plan))], right=[2, 3, 4, 5, 6, 7] if time else [2, 3, 4, 5])


def time_lines(plan: Plan, machine: Machine, found: Fastest) -> list[str]:
    """Seconds per pass, and per tensor the cost, algorithm and place of its communication.

    A rank order that would be faster is named last.
    """
    lines = [f"time on {machine}"]
    for time in found.times:
        lines.append(
            f"  {time.pass_}: {time.total * 1e6:.1f} µs = computing {time.compute * 1e6:.1f} µs + exposed "
            f"communication {time.exposed * 1e6:.1f} µs (of {time.comm * 1e6:.1f} µs in all)"
        )
        rows = [_row(plan, machine, *part) for part in time.parts]
        lines += [f"    {line}" for line in table(rows, right=[1])] if rows else ["    nothing moves"]
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
