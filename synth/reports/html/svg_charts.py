"""The static pictures of the HTML report as SVG text; colours are CSS variables of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from synth.analysis.tradeoff import TradeoffPoint
from synth.base.units import show_bytes, show_words
from synth.layer.axes import TENSORS
from synth.planning.plan import Plan
from synth.reports.html.html_data import received_runs

WIDE, HIGH = 620, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 26, 40
MOST_RUNS = 400


class Scale:
    """A position in pixels for a value; logarithmic or linear."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool) -> None:
        self.log, self.start, self.end = log, start, end
        self.low, self.high = (math.log(low), math.log(high)) if log else (low, high)

    def __call__(self, value: float) -> float:
        """Pixels."""
        at = math.log(value) if self.log else value
        share = (at - self.low) / (self.high - self.low or 1)
        return round(self.start + share * (self.end - self.start), 1)


def _short(words: float) -> str:
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if words >= size:
            return f"{words / size:g}{suffix}"
    return f"{words:g}"


def _nice(low: float, high: float) -> list[float]:
    """At most eight round ticks between two positive numbers on a log scale."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside: list[float] = []
    for leads in (
        (1,),
        (1, 3),
        (1, 2, 5),
        (1, 1.5, 2, 3, 5, 7),
        (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8),
    ):
        found = [lead * 10.0**d for d in decades for lead in leads if low <= lead * 10.0**d <= high]
        if len(found) <= 8:
            inside = found
    return inside


def _powers(low: float, high: float) -> list[int]:
    """Powers of two between two numbers, at most eight of them."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    return [2**n for n in range(first, last + 1, max(1, -(-(last - first + 1) // 7)))]


def _text(x: float, y: float, text: str, kind: str = "tick", anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{text}</text>'


def _svg(parts: Iterable[str], label: str, name: str, high: int = HIGH) -> str:
    return (
        f'<svg id="{name}" viewBox="0 0 {WIDE} {high}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


# --- words against memory --------------------------------------------------------------------------------


def tradeoff_chart(plan: Plan, curve: Sequence[TradeoffPoint]) -> str:
    """Received words over memory, log-log: regimes as bands, the bound, best plans, this plan."""
    size = plan.nest.word_bytes
    known = [plan.words["total"], *(v for p in curve for v in (p.bound, p.words))]
    words = [v for v in known if v and v > 0] or [1.0]
    low, high = min(words) / 1.25, max(words) * 1.25
    x = Scale(curve[0].limit_words * size, curve[-1].limit_words * size, LEFT, WIDE - RIGHT, True)
    y = Scale(low, high, HIGH - BOTTOM, TOP, True)
    parts = list(_bands(plan, curve, x))
    parts += _rules(_nice(low, high), y)
    for memory in _powers(curve[0].limit_words * size, curve[-1].limit_words * size):
        if x(memory) <= WIDE - RIGHT - 20:
            parts.append(_text(x(memory), HIGH - BOTTOM + 18, show_bytes(memory)))
    parts.append(_text((LEFT + WIDE - RIGHT) / 2, HIGH - 4, "memory per process", "label"))
    bound = [f"{x(p.limit_words * size)},{y(p.bound)}" for p in curve if p.bound > 0]
    if bound:
        parts.append(f'<polyline class="bound" points="{" ".join(bound)}"/>')
    parts.append(f'<path class="best" d="{_staircase(curve, x, y, size)}"/>')
    if plan.limit_bytes is not None and x.start <= x(plan.limit_bytes) <= x.end:
        at = x(plan.limit_bytes)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{HIGH - BOTTOM}" class="limit"/>')
    if plan.words["total"] > 0:
        parts.append(f'<circle class="here" cx="{x(plan.used_bytes)}" cy="{y(plan.words["total"])}" r="6"/>')
    return _svg(parts, "Received words against memory per process", "tradeoff")


def _rules(values: Iterable[float], y: Scale) -> Iterable[str]:
    """A line across the chart at each value, and the value beside it."""
    for value in values:
        yield f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(value)}" y2="{y(value)}" class="rule"/>'
        yield _text(LEFT - 8, y(value) + 4, _short(value), anchor="end")


def _bands(plan: Plan, curve: Sequence[TradeoffPoint], x: Scale) -> Iterable[str]:
    """The regimes of the bound as bands; a shaded band where the shards alone do not fit."""
    size, high = plan.nest.word_bytes, HIGH - BOTTOM - TOP
    starts = [i for i, p in enumerate(curve) if i == 0 or p.regime != curve[i - 1].regime]
    for number, start in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else len(curve) - 1
        left, right = x(curve[start].limit_words * size), x(curve[stop].limit_words * size)
        kind = "band odd" if number % 2 else "band"
        yield f'<rect class="{kind}" x="{left}" y="{TOP}" width="{right - left:.1f}" height="{high}"/>'
        yield _text((left + right) / 2, TOP - 8, curve[start].regime, "label")
    least = x(plan.nest.total_words / plan.procs * size)
    if least > x.start:
        yield f'<rect class="never" x="{x.start}" y="{TOP}" width="{least - x.start:.1f}" height="{high}"/>'
        yield _text((x.start + least) / 2, HIGH - BOTTOM - 8, "shards do not fit", "tick")


def _staircase(curve: Sequence[TradeoffPoint], x: Scale, y: Scale, size: int) -> str:
    path, last = "", None
    for point in curve:
        if not point.words:
            continue
        here = f"{x(point.limit_words * size)}"
        if last is None:
            path += f"M{here},{y(point.words)}"
        elif point.words != last:
            path += f"H{here}V{y(point.words)}"
        last = point.words
    return f"{path}H{x.end}" if path else ""


# --- words of every rank ---------------------------------------------------------------------------------


def words_chart(plan: Plan) -> str:
    """The words that every rank receives, stacked by tensor, and the bound."""
    runs = _fewer(received_runs(plan), plan.used_procs)
    most = max((sum(run[1:4]) for run in runs), default=1) or 1
    y = Scale(0, max(most, plan.bound.words) * 1.08, HIGH - BOTTOM, TOP, False)
    x = Scale(0, plan.used_procs, LEFT, WIDE - RIGHT, False)
    parts = [*_rules(_steps(max(most, plan.bound.words)), y)]
    for count in range(3, 0, -1):  # the tallest stack first, the others in front of it
        path, rank = f"M{x(0)},{y(0)}", 0
        for run in runs:
            path += f"V{y(sum(run[1 : count + 1]))}"
            rank += run[0]
            path += f"H{x(rank)}"
        parts.append(f'<path class="fill-{TENSORS[count - 1].lower()}" d="{path}V{y(0)}Z"/>')
    if plan.bound.words > 0:
        at = y(plan.bound.words)
        parts.append(f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{at}" y2="{at}" class="floor"/>')
        parts.append(_text(WIDE - RIGHT - 4, at - 5, f"bound {show_words(plan.bound.words)}", "note", "end"))
    parts.append(_text(LEFT, HIGH - BOTTOM + 18, "rank 0", anchor="start"))
    parts.append(_text(WIDE - RIGHT, HIGH - BOTTOM + 18, f"rank {plan.used_procs - 1}", anchor="end"))
    parts.append(
        f'<rect id="marker" x="{LEFT}" y="{TOP}" width="0" height="{HIGH - BOTTOM - TOP}" '
        f'data-left="{LEFT}" data-each="{(WIDE - RIGHT - LEFT) / plan.used_procs}"/>'
    )
    return _svg(parts, "Words that every rank receives, and the lower bound", "words")


def _fewer(runs: list[list[int]], procs: int) -> list[list[int]]:
    """At most `MOST_RUNS` runs: neighbouring runs are merged, each with the maximum of its words."""
    if len(runs) <= MOST_RUNS:
        return runs
    merged: list[list[int]] = []
    each = procs / MOST_RUNS
    for run in runs:
        if merged and merged[-1][0] + run[0] <= each:
            merged[-1] = [merged[-1][0] + run[0], *map(max, zip(merged[-1][1:], run[1:], strict=True))]
        else:
            merged.append(list(run))
    return merged


def _steps(most: float) -> list[float]:
    """About four round numbers from 0 to `most`."""
    if most <= 0:
        return [0.0]
    raw = most / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [i * step for i in range(int(most / step) + 1)]
