"""The points of a sweep as text, CSV and JSON: one row per number of processes and memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from synth.analysis.sweep import BestPlan, Point
from synth.base.notebook import figure, inline_html
from synth.base.tabular import Tabular, flat
from synth.base.text_table import table
from synth.base.units import show_bytes, show_words
from synth.bounds.assumptions import SCHEDULES, TILED
from synth.bounds.regimes import Change, changes_along_memory, changes_along_procs
from synth.layer.layer import Layer
from synth.layer.residue_classes import described
from synth.planning.plan_json import axes_json

SCHEMA = "synth.bounds/1"
LOAD = "no process does more work than in the plan beside the bound; in `fair`, work is equal"


@dataclass(frozen=True)
class Study(Tabular):
    """The bounds of one layer over processes and memory, as `synth.lower_bounds` makes them.

    points: one for each number of processes and memory limit, with all words `received` and `accessed` per
    process. changes: where the regime of the bound changes. `str(study)` has the tables, `to_json` the data.
    """

    layer: Layer
    points: Sequence[Point]
    changes: Sequence[Change]

    @classmethod
    def of(cls, layer: Layer, points: Sequence[Point]) -> Study:
        """A study with the changes of the bound's regime along processes and along memory."""
        procs = sorted({p.procs for p in points})
        sizes = sorted({p.limit_bytes for p in points if p.limit_bytes is not None})
        found: list[Change] = []
        size = layer.nest.word_bytes
        if len(procs) > 1:
            limit = sizes[-1] // size if sizes else None
            found += changes_along_procs(layer.nest, procs, limit)
        if len(sizes) > 1:
            for p in procs if len(procs) <= 3 else ():
                found += changes_along_memory(layer.nest, p, sizes)
        return cls(layer, points, found)

    def __str__(self) -> str:
        """The tables that `synth bounds` prints."""
        return text(self)

    def _repr_html_(self) -> str:
        """The bounds and the best plans, for notebooks."""
        return inline_html(self)

    def records(self) -> list[dict[str, Any]]:
        """A row per point: the numbers of `to_json`, nested keys joined by dots."""
        return [flat(point) for point in self.to_json()["points"]]

    def plot(self) -> Any:
        """A matplotlib figure of received words over processes or memory: bound, relaxation, plans."""
        return figure(self)

    def to_json(self) -> dict[str, Any]:
        """All numbers as JSON data. The unit is words, or bytes if the key says so."""
        return {
            "schema": SCHEMA,
            "name": self.layer.name,
            "problem": self.layer.to_json(),
            "assumptions": {"universal": [*SCHEDULES, LOAD], "paper": TILED},
            "points": [_point_json(self.layer, point) for point in self.points],
            "changes": [asdict(change) for change in self.changes],
        }


def fits(layer: Layer, point: Point) -> bool:
    """Whether the memory of all processes together holds the three tensors."""
    if point.limit_bytes is None:
        return True
    return point.procs * (point.limit_bytes // layer.nest.word_bytes) >= layer.nest.total_words


def _point_json(layer: Layer, point: Point) -> dict[str, Any]:
    r, a = point.received, point.accessed
    plan = None
    if r.plan:
        plan = {
            "words": r.plan.words,
            "grid": axes_json(layer, r.plan.grid),
            "used_procs": r.plan.grid.size,
            "turned": list(r.plan.turned),
            **({"classes": dict(r.plan.classes)} if r.plan.classes else {}),
            "stationary": r.plan.stationary.lower(),
            "regime": r.plan.regime,
            "memory_bytes": r.plan.used_words * layer.nest.word_bytes,
            "ratio": r.ratio,
        }
    gap = None if r.gap is None else {**asdict(r.gap), "total": r.gap.total}
    return {
        "procs": point.procs,
        "memory_bytes": point.limit_bytes,
        "fits": fits(layer, point),
        "received": {
            "bound": r.bound,
            "segments": r.segments,
            "most_work": r.most_work,
            "bound_at_fair_load": r.fair_bound,
            "bound_with_surface": r.with_surface,
            "regime": r.regime,
            "relaxation": r.relaxation,
            "plan": plan,
            "gap": gap,
            "matmul": r.matmul,
        },
        "accessed": {
            "bound": a.bound,
            "sequential": a.sequential,
            "table1_printed": {"case": a.table1_printed[0], "words": a.table1_printed[1]},
            "table1_corrected": {"case": a.table1_corrected[0], "words": a.table1_corrected[1]},
            "table2_printed": a.table2_printed,
            "table2_corrected": a.table2_corrected,
            "closed_form": a.closed_form and {"case": a.closed_form[0], "words": a.closed_form[1]},
            "stationary": a.stationary and a.stationary.lower(),
            "relaxation": a.relaxation,
            "integer": a.integer,
        },
    }


# --- text --------------------------------------------------------------------------------------------


def text(study: Study) -> str:
    """Text with one table per accounting and the changes of the regime."""
    lines = [f"{study.layer.name}: {study.layer}", ""]
    lines += ["received words per process  (what is owned is free; memory is all that a process has)", ""]
    lines += _received(study)
    lines += ["", *_changes(study), ""]
    lines += ["accessed words per process  (a global virtual memory; memory is for tiles)", ""]
    lines += _accessed(study)
    return "\n".join(lines) + "\n"


def _words(value: float | None) -> str:
    return "-" if value is None else show_words(value)


def _where(study: Study, point: Point) -> list[str]:
    limited = any(p.limit_bytes is not None for p in study.points)
    where = [str(point.procs)]
    return (
        [*where, "any" if point.limit_bytes is None else show_bytes(point.limit_bytes)] if limited else where
    )


def _head(study: Study) -> list[str]:
    return ["P", "memory"] if any(p.limit_bytes is not None for p in study.points) else ["P"]


def _received(study: Study) -> list[str]:
    matmul = any(p.received.matmul is not None for p in study.points)
    surface = any(p.received.with_surface > p.received.bound * (1 + 1e-4) for p in study.points)
    head = [
        *_head(study),
        "bound",
        *(["with surface"] if surface else []),
        "fair",
        "n",
        "regime",
        *(["matmul"] if matmul else []),
        "relaxation",
    ]
    rows = [[*head, "plan", "/bound", "integer", "halo", "bound", "regime", "grid"]]
    for point in study.points:
        r = point.received
        row = [*_where(study, point), _words(r.bound), *([_words(r.with_surface)] if surface else [])]
        row += [_words(r.fair_bound), str(r.segments), r.regime]
        row += [_words(r.matmul)] if matmul else []
        row += [_words(r.relaxation)]
        row += [_words(r.plan.words) if r.plan else "-"]
        row += [r.shown_ratio]
        gap = (r.gap.integer, r.gap.halo, r.gap.bound) if r.gap else ()
        row += [_percent(part, r.bound) for part in gap] or ["-"] * 3
        none = "-" if fits(study.layer, point) else "does not fit"
        row += [r.plan.regime, _grid(r.plan)] if r.plan else ["-", none]
        rows.append(row)
    last = len(rows[0]) - 1
    lines = table(rows, right=[i for i in range(last - 1) if rows[0][i] != "regime"])
    lines += ["", "integer, halo, bound: the parts of the gap plan - bound, in percent of the bound"]
    if any(point.received.small for point in study.points):
        lines += ["/bound *: the bound is small beside what a process owns, so that a ratio says little"]
    lines += [f"bound: for every schedule with {SCHEDULES[0]};", *(f"  {each};" for each in SCHEDULES[1:])]
    lines += [f"  {LOAD}"]
    lines += ["with surface: the same with the surface of regions (docs/bounds.md)"] if surface else []
    if not all(fits(study.layer, point) for point in study.points):
        lines.append("does not fit: the memory of all processes is less than the three tensors")
    return lines


def _grid(plan: BestPlan) -> str:
    """The grid, and the axes along which its blocks are cut by input rows."""
    turned = f" by input {', '.join(plan.turned)}" if plan.turned else ""
    classes = f" with classes {described(plan.classes)}" if plan.classes else ""
    return f"{plan.grid.shown()}{turned}{classes}"


def _percent(part: float, bound: float) -> str:
    return f"{round(100 * part / bound, 1) + 0.0:.1f}%" if bound > 0 else "-"  # + 0.0: no "-0.0"


def _accessed(study: Study) -> list[str]:
    limited = any(p.limit_bytes is not None for p in study.points)
    eq3 = any(p.accessed.integer is not None for p in study.points)
    head = [*_head(study), "bound", *(["sequential"] if limited else []), "Table 1 printed", "corrected"]
    tail = ["Table 2 printed", "corrected", "Eq. 4", "case", "relaxation", *(["integer"] if eq3 else [])]
    rows = [[*head, *tail]]
    wrong = False
    for point in study.points:
        a = point.accessed
        marks = [
            "!" if abs(printed - right) > 1e-9 * right else ""
            for printed, right in (
                (a.table1_printed[1], a.table1_corrected[1]),
                (a.table2_printed, a.table2_corrected),
            )
        ]
        wrong |= any(marks)
        row = [*_where(study, point), _words(a.bound), *([_words(a.sequential)] if limited else [])]
        row += [f"{marks[0]}{_words(a.table1_printed[1])} {a.table1_printed[0]}"]
        row += [f"{_words(a.table1_corrected[1])} {a.table1_corrected[0]}"]
        row += [f"{marks[1]}{_words(a.table2_printed)}", _words(a.table2_corrected)]
        form = a.closed_form
        row += [_words(form[1]), f"{form[0]} {a.stationary}"] if form else ["-", "-"]
        row += [_words(a.relaxation), *([_words(a.integer)] if eq3 else [])]
        rows.append(row)
    lines = table(rows, right=[i for i in range(len(rows[0])) if rows[0][i] != "case"])
    if wrong:
        lines += ["", "! the table as printed differs from the corrected one (docs/errata.md)"]
    return lines


def _changes(study: Study) -> list[str]:
    if not study.changes:
        regimes = sorted({p.received.regime for p in study.points})
        return [f"regime of the bound: {', '.join(regimes)}; no change between the points"]
    lines = ["regimes of the bound"]
    for change in study.changes:
        if change.along == "procs":
            lines.append(f"  {change.before} up to P = {change.at - 1}, {change.after} from P = {change.at}")
        else:
            lines.append(
                f"  P = {change.fixed}: {change.before} below {show_bytes(change.at)} per process, "
                f"{change.after} from there"
            )
    return lines
