"""Pictures for papers with matplotlib: sweeps of bounds, and single views of a plan."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from synth.analysis.sweep import Point
from synth.analysis.sweep_table import Study
from synth.analysis.tradeoff import memory_curve
from synth.base.errors import UsageError
from synth.base.ranges import spaced
from synth.base.units import show_bytes, show_words
from synth.bounds.universal import universal_bound
from synth.layer.axes import TENSORS
from synth.planning.comparison import THIS, by_words, compared
from synth.planning.plan import Plan
from synth.reports.plot_frame import BLUE, GREEN, GREY, OF_TENSOR, ORANGE, PURPLE, RED, SKY, framed, titled
from synth.reports.plot_grid import grid_figure
from synth.reports.text_costs import memory_stages

FORMATS = ("svg", "png", "pdf")


def picture_format(path: str) -> str:
    """The format that the ending of a file name means. Raises `UsageError`."""
    ending = os.path.splitext(path)[1].lstrip(".").lower()
    if ending not in FORMATS:
        raise UsageError(f"{path}: a picture is a .svg, .png or .pdf file; choose one of these endings")
    return ending


def draw(figure: Any, path: str) -> None:
    """Writes a picture, whole or not at all, the same bytes for the same figure. Raises `UsageError`."""
    from synth.base.atomic_write import write_bytes

    ending = picture_format(path)
    out = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    figure.savefig(out, format=ending, dpi=200, metadata=dates[ending])
    write_bytes(path, out.getvalue())


# --- a sweep ------------------------------------------------------------------------------------------


def sweep_figure(study: Study) -> Any:
    """Received words per process over P (one curve per memory) or over memory (one per P), log-log."""
    figure, axes = framed()
    procs = sorted({p.procs for p in study.points})
    sizes = sorted({p.limit_bytes for p in study.points if p.limit_bytes is not None})
    along_memory = len(sizes) > 1
    lines = _some(procs, 5) if along_memory else [sizes[0] if sizes else None]
    for index, fixed in enumerate(lines):
        chosen = [p for p in study.points if (p.procs if along_memory else p.limit_bytes) == fixed]
        points = sorted(chosen, key=lambda p: (p.limit_bytes or 0) if along_memory else p.procs)
        name = f"P = {fixed}: " if along_memory and len(lines) > 1 else ""
        colours = [BLUE, ORANGE, GREEN, RED, PURPLE]
        one = len(lines) == 1
        bounds = _smooth(study, points) if along_memory else [(p.procs, p.received.bound) for p in points]
        _curve(axes, bounds, f"{name}lower bound", colours[index], "-")
        if one:
            relaxed = [(_at(p, along_memory), p.received.relaxation) for p in points]
            _curve(axes, relaxed, "relaxation", GREY, "--")
        colour = RED if one else colours[index]
        plans = [(_at(p, along_memory), p.received.plan.words if p.received.plan else None) for p in points]
        _curve(axes, plans, f"{name}best plan", colour, "", marker="o")
    for change in study.changes:
        if (change.along == "memory") == along_memory and change.fixed in (*lines, None):
            axes.axvline(change.at, color=GREY, linewidth=0.8, linestyle=":")
            axes.annotate(
                f" {change.after}", (change.at, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("memory per process (bytes)" if along_memory else "processes P")
    axes.set_ylabel("received words per process")
    titled(axes, f"{study.layer.name}: {study.layer}")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _at(point: Point, along_memory: bool) -> int | None:
    return point.limit_bytes if along_memory else point.procs


def _smooth(study: Study, points: Sequence[Point], count: int = 96) -> list[tuple[int, float]]:
    """The bound over memory between the points of one P, at the largest load of their plans.

    So it holds for each of these plans. The bounds in the table are at the load of each plan.
    """
    nest, sizes = study.layer.nest, [p.limit_bytes for p in points if p.limit_bytes is not None]
    if not sizes:
        return []
    load, size = max(p.received.most_work for p in points), nest.word_bytes
    limits = sorted({*sizes, *spaced(min(sizes), max(sizes), count)})
    return [(n, universal_bound(nest, points[0].procs, n // size, load).words) for n in limits]


def _some(values: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly, the ends included."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _curve(
    axes: Any,
    points: Sequence[tuple[int | None, float | None]],
    label: str,
    colour: str,
    line: str,
    marker: str = "",
) -> None:
    kept = [(x, y) for x, y in points if x is not None and y is not None and y > 0]
    if kept:
        x, y = zip(*kept, strict=True)
        axes.plot(x, y, label=label, color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.6)


# --- a plan ---------------------------------------------------------------------------------------------


def plan_figure(plan: Plan, picture: str) -> Any:
    """One view of a plan: grid, words, memory, strategies or tradeoff. Raises `UsageError` for another."""
    views = {
        "grid": grid_figure,
        "words": _words,
        "memory": _memory,
        "strategies": _strategies,
        "tradeoff": _tradeoff,
    }
    if picture not in views:
        raise UsageError(f"{picture!r} is no picture of a plan; choose one of {', '.join(views)}")
    return views[picture](plan)


def _title(axes: Any, plan: Plan, text: str, pad: float = 6, inches: float = 5.0) -> None:
    titled(axes, f"{plan.layer.name}, {plan.pass_}, P = {plan.procs}: {text}", pad, inches)


def _words(plan: Plan) -> Any:
    figure, axes = framed()
    ranks, base = range(plan.used_procs), [0] * plan.used_procs
    for tensor in TENSORS:
        values = [int(v) for v in plan.received.by_tensor[tensor].flatten()]
        axes.bar(ranks, values, bottom=base, width=1.0, label=tensor, color=OF_TENSOR[tensor])
        base = [a + b for a, b in zip(base, values, strict=True)]
    axes.axhline(plan.bound.words, color="black", linewidth=1.2, label="lower bound")
    axes.set_xlabel("rank")
    axes.set_ylabel("received words")
    axes.set_xlim(-0.5, plan.used_procs - 0.5)
    _title(axes, plan, "words that every rank receives")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def _memory(plan: Plan) -> Any:
    stages = memory_stages(plan)
    figure, axes = framed(height=1.5 + 0.32 * len(stages))
    size = plan.nest.word_bytes
    unit, name = _unit(max(plan.used_bytes, plan.limit_bytes or 0))
    bars = axes.barh(list(stages)[::-1], [words * size / unit for words in stages.values()][::-1], color=SKY)
    axes.bar_label(bars, [show_bytes(words * size) for words in stages.values()][::-1], padding=4, fontsize=8)
    if plan.limit_bytes is not None:
        axes.axvline(plan.limit_bytes / unit, color=RED, linewidth=1.4)
        limit = f"limit {show_bytes(plan.limit_bytes)} "
        place = (plan.limit_bytes / unit, 1.0)
        axes.annotate(
            limit, place, xycoords=("data", "axes fraction"), ha="right", va="bottom", fontsize=8, color=RED
        )
    axes.margins(x=0.16)
    axes.grid(False, axis="y")
    axes.set_xlabel(f"{name} per process, at most")
    _title(axes, plan, "memory by phase", pad=16 if plan.limit_bytes is not None else 6)
    return figure


def _unit(size: float) -> tuple[int, str]:
    """The largest binary unit that is not above a size in bytes: (its bytes, its name)."""
    units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")]
    return next((unit for unit in units if unit[0] <= size), units[-1])


def _strategies(plan: Plan) -> Any:
    """A dot for each strategy, fewest words first, with its ratio to this plan."""
    total = plan.words["total"]
    rows = [row for row in by_words(compared(plan)) if row.words is not None]
    figure, axes = framed(height=1.5 + 0.2 * len(rows))
    known = [row.words for row in rows if row.words]
    least = min([*known, *(row.bound for row in rows if row.bound and row.bound >= 1)], default=1)
    zero = least / 2  # where no words are drawn, at the left end of the log scale
    bounds = [(row.bound, place) for place, row in enumerate(rows) if row.bound and row.bound > zero]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "|", color="black", markersize=9, label="lower bound")
    for place, row in enumerate(rows):
        words, mine = row.words or 0, row.name == THIS
        colour = BLUE if mine else GREY
        axes.plot(
            *([words or zero], [place], "o" if words else "<"),
            color=colour, markersize=8 if mine else 6,
            markerfacecolor=colour if row.feasible else "none", clip_on=False,
        )  # fmt: skip
        said = f"{words / total:.2f}×" if total else ""
        said = f"{show_words(words)}   {said}" if words else f"0   {said}"
        axes.annotate(
            said, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=colour
        )
    axes.annotate(
        "words   / this plan", (1.02, 1.0), xycoords="axes fraction", va="bottom", fontsize=8, color=GREY
    )
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(zero, max(known, default=1) * 1.25)
    axes.set_xlabel(
        "received words per process, log scale\n"
        "| lower bound at the load of the strategy; hollow: breaks work balance or memory"
    )
    _title(axes, plan, "named strategies", pad=18, inches=4.5)
    return figure


def _tradeoff(plan: Plan) -> Any:
    figure, axes = framed()
    curve = memory_curve(plan)
    size = plan.nest.word_bytes
    bound = [(p.limit_words * size, p.bound) for p in curve if p.bound > 0]
    if bound:
        axes.plot(
            *zip(*bound, strict=True), color=BLUE, linewidth=1.8, label="lower bound at the largest load"
        )
    plans = [(p.limit_words * size, p.words) for p in curve if p.words]
    if plans:
        axes.step(*zip(*plans, strict=True), where="post", color=RED, linewidth=1.4, label="best plan")
    axes.plot([plan.used_bytes], [max(1, plan.words["total"])], "o", color="black", label="this plan")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("memory per process (bytes)")
    axes.set_ylabel("received words per process")
    _title(axes, plan, "words against memory")
    axes.legend(frameon=False, fontsize=8)
    return figure
