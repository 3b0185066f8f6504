"""Pictures for papers with matplotlib: sweeps of bounds, and single views of a plan."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import Any

from synth.analysis.sweep import Point
from synth.analysis.sweep_table import Study
from synth.analysis.tradeoff import memory_curve
from synth.base.errors import UsageError
from synth.base.extras import extra_needed
from synth.layer.axes import AXES, TENSORS
from synth.planning.comparison import compare
from synth.planning.plan import Plan

FORMATS = ("svg", "png", "pdf")
# Okabe and Ito (2008): eight colours that colour-blind readers tell apart
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7f7f7f",
)  # fmt: skip
OF_TENSOR = {"In": BLUE, "Ker": ORANGE, "Out": GREEN}


def picture_format(path: str) -> str:
    """The format that the ending of a file name means. Raises `UsageError`."""
    ending = os.path.splitext(path)[1].lstrip(".").lower()
    if ending not in FORMATS:
        raise UsageError(f"{path}: a picture is a .svg, .png or .pdf file; choose one of these endings")
    return ending


@extra_needed()
def _figure(width: float = 6.4, height: float = 4.0) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "synth"  # the same picture, the same bytes
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    return figure, axes


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
    figure, axes = _figure()
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
        _curve(axes, points, along_memory, f"{name}lower bound", _bound, colours[index], "-")
        if one:
            _curve(axes, points, along_memory, "relaxation", lambda p: p.received.relaxation, GREY, "--")
        colour = RED if one else colours[index]
        _curve(axes, points, along_memory, f"{name}best plan", _planned, colour, "", marker="o")
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
    axes.set_title(f"{study.layer.name}: {study.layer}", fontsize=9, loc="left")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _bound(point: Point) -> float | None:
    return point.received.bound


def _planned(point: Point) -> float | None:
    return None if point.received.plan is None else float(point.received.plan.words)


def _some(values: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly, the ends included."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _curve(
    axes: Any,
    points: Sequence[Point],
    along_memory: bool,
    label: str,
    value: Callable[[Point], float | None],
    colour: str,
    line: str,
    marker: str = "",
) -> None:
    shown = [(p.limit_bytes if along_memory else p.procs, value(p)) for p in points]
    kept = [(x, y) for x, y in shown if x is not None and y is not None and y > 0]
    if kept:
        x, y = zip(*kept, strict=True)
        axes.plot(x, y, label=label, color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.6)


# --- a plan ---------------------------------------------------------------------------------------------


def plan_figure(plan: Plan, picture: str) -> Any:
    """One view of a plan: grid, words, memory, strategies or tradeoff."""
    views = {
        "grid": _grid,
        "words": _words,
        "memory": _memory,
        "strategies": _strategies,
        "tradeoff": _tradeoff,
    }
    return views[picture](plan)


def _title(axes: Any, plan: Plan, text: str) -> None:
    axes.set_title(f"{plan.layer.name}, P = {plan.procs}: {text}", fontsize=9, loc="left")


def _words(plan: Plan) -> Any:
    figure, axes = _figure()
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
    figure, axes = _figure(height=2.6)
    phases = {n: w for n, w in vars(plan.memory).items() if isinstance(w, int) and w}
    size = plan.nest.word_bytes
    axes.barh(list(phases)[::-1], [w * size for w in phases.values()][::-1], color=SKY)
    if plan.limit_bytes is not None:
        axes.axvline(plan.limit_bytes, color=RED, linewidth=1.4, label="limit")
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("bytes per process, at most")
    _title(axes, plan, "memory by phase")
    return figure


def _strategies(plan: Plan) -> Any:
    figure, axes = _figure(height=3.6)
    rows = [("this plan", plan.words["total"], True)]
    rows += [(a.name, a.words, a.feasible) for a in compare(plan) if a.words is not None]
    rows = rows[::-1]
    colours = [BLUE if n == "this plan" else SKY if feasible else "#cccccc" for n, _, feasible in rows]
    axes.barh([n for n, _, _ in rows], [max(1, w) for _, w, _ in rows], color=colours)
    if plan.bound.words > 0:
        axes.axvline(plan.bound.words, color="black", linewidth=1.2, label="lower bound")
        axes.legend(frameon=False, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("received words per process (grey: breaks work balance or memory)")
    _title(axes, plan, "named strategies")
    return figure


def _tradeoff(plan: Plan) -> Any:
    figure, axes = _figure()
    curve = memory_curve(plan)
    size = plan.nest.word_bytes
    bound = [(p.limit_words * size, p.bound) for p in curve if p.bound > 0]
    if bound:
        axes.plot(*zip(*bound, strict=True), color=BLUE, linewidth=1.8, label="lower bound")
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


def _grid(plan: Plan) -> Any:
    """Every process as a cell: b, g, d, h, w downwards, c and k to the right; coloured by its words."""
    figure, axes = _figure(5.6, 4.6)
    total = plan.received.total
    rows, columns = plan.grid.x * plan.grid.g, plan.grid.c * plan.grid.k
    image = axes.imshow(total.reshape(rows, columns), cmap="Blues", vmin=0, aspect="auto")
    figure.colorbar(image, label="received words")
    down = "·".join(a for a in AXES[:5] if getattr(plan.grid, a) > 1) or "x"
    axes.set_ylabel(f"{down} ({rows})")
    axes.set_xlabel(f"c·k ({plan.grid.c} x {plan.grid.k})")
    axes.grid(False)
    _title(axes, plan, f"grid {plan.grid.shown()}")
    return figure
