"""A plan in a few lines: `print(plan)`. The full report is `synth.report(plan)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.base.text_table import wrapped
from synth.base.units import show_bytes, show_words
from synth.planning.decisions import phrases
from synth.planning.one_line import one_line

LARGE, SMALL = 2.0, 0.1  # a ratio that a small bound may cause; a small part of what a process owns

if TYPE_CHECKING:
    from synth.bounds.universal import UniversalBound
    from synth.planning.plan import Plan


def summary(plan: Plan) -> str:
    """About eight lines: the layer, what was decided, words, memory and bound."""
    size, total = plan.nest.word_bytes, plan.words["total"]
    limit = f" of {show_bytes(plan.limit_bytes)}" if plan.limit_bytes else ""
    lines = [
        *heading(plan),
        f"grid    {plan.grid.shown()}",
        f"work    {plan.work.shown()} per process, at most",
        *(f"{'passes' if not i else '':<8}{pass_plan}" for i, pass_plan in enumerate(plan.pass_plans)),
        f"words   {show_words(total)} received per process, at most = {show_bytes(total * size)}",
        *(f"        {line}" for line in not_proven(plan)),
        f"memory  {show_words(plan.used_words)} words used per process, at most "
        f"= {show_bytes(plan.used_bytes)}{limit}",
        f"bound   {show_words(plan.bound.words)} received words; plan / bound = "
        f"{ratio_text(total, plan.bound)}, at the load of the plan",
    ]
    if plan.timed:
        machine, found = plan.timed
        lines.append(f"time    {found.seconds * 1e6:.1f} µs on {machine.name}")
    return "\n".join(wrapped(lines))


def not_proven(plan: Plan) -> list[str]:
    """What the search has not proven, where it ended early."""
    if plan.proven_words is None:
        return []
    fewest = show_words(plan.proven_words)
    return [
        f"not proven the fewest: the search ended early; no plan of the family receives fewer than {fewest}"
    ]


def ratio_text(words: int, bound: UniversalBound) -> str:
    """Received words over a bound with a caution: `1.126`, `117.7: the bound is small, ...`, `none: ...`."""
    return ": ".join(filter(None, ratio_of(words, bound)))


def ratio_of(words: int, bound: UniversalBound) -> tuple[str, str]:
    """(received words over a bound, or `none`; a caution, or why there is none, or "").

    A bound is what a process accesses, less what it owns. Where these two are nearly equal, the bound is a
    small rest of them, and a large ratio may say little of the plan.
    """
    if bound.words <= 0:
        return ("none", "the bound is 0") if words else ("1.000", "")
    part = f"the bound is small, {bound.words / bound.resident:.2%} of what a process owns"
    return shown_ratio(words / bound.words), part if is_small(words, bound) else ""


def shown_ratio(ratio: float) -> str:
    """Received words over a bound: three decimals, or one of a large ratio."""
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:,.1f}".replace(",", " ")


def is_small(words: int, bound: UniversalBound) -> bool:
    """Whether received words over a bound are a large ratio because the bound is a small rest."""
    return words > LARGE * bound.words and bound.words < SMALL * bound.resident


PARALLEL = {  # axes that are split -> what that is called; other grids have the name of an algorithm
    "b": "data parallelism",
    "dhw": "spatial partitioning",
    "bdhw": "data+spatial partitioning",
    "gk": "filter parallelism",
    "gc": "channel parallelism",
}


def algorithm(plan: Plan) -> str:
    """What people call the grid: `data parallelism`, `3D algorithm`."""
    split = {axis for axis, parts in plan.grid._asdict().items() if parts > 1}
    if not split:
        return "one process"
    if plan.classes:  # axis b is no longer that of the samples alone
        return f"{plan.algorithm} algorithm"
    return next(
        (name for axes, name in PARALLEL.items() if split <= set(axes)), f"{plan.algorithm} algorithm"
    )


def heading(plan: Plan) -> list[str]:
    """Layer, unusual decisions, plan, algorithm, processes, and the line that can be typed back."""
    idle = plan.procs - plan.used_procs
    left = f", {idle} idle" if idle else ""
    stationary = ", ".join(dict.fromkeys(pass_plan.stationary for pass_plan in plan.pass_plans))
    folded = (
        [f"as {plan.layer.contraction}; indices side by side are one dimension"]
        if plan.layer.kind == "einsum"
        else []
    )
    turned = [f"as the backward-data pass of {plan.layer.conv}, whose Out is the layer's input"]
    return [
        f"{plan.layer.name}: {plan.layer}",
        *(turned if plan.layer.transposed else []),
        *folded,
        *phrases(plan),
        f"plan {plan.id}: {plan.pass_}, {algorithm(plan)}, {stationary} stationary, "
        f"{plan.used_procs} of {plan.procs} processes{left}",
        f'in one line: --as "{one_line(plan)}"',
    ]
