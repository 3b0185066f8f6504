"""The points of a sweep as text, CSV and JSON: one row per number of processes and memory limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from synth.analysis.sweep import Accessed, BestPlan, Point, Received
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
FAIR_LOAD = "no process does more than an equal part of the multiply-adds, rounded up"


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
        """A row per point: the numbers of `to_json`, nested keys joined by dots.

        All studies have the same columns. `received.gap.*` are words, and `*_percent` percent of the bound.
        """
        return [_record(point) for point in self.to_json()["points"]]

    def plot(self) -> Any:
        """A matplotlib figure of received words over processes or memory: bound, relaxation, plans."""
        return figure(self)

    def to_json(self) -> dict[str, Any]:
        """All numbers as JSON data. The unit is words, or bytes if the key says so."""
        return {
            "schema": SCHEMA,
            "name": self.layer.name,
            "problem": self.layer.to_json(),
            "assumptions": {"universal": [*SCHEDULES, _load(self.points)], "paper": TILED},
            "points": [_point_json(self.layer, point) for point in self.points],
            "changes": [asdict(change) for change in self.changes],
        }


def fits(layer: Layer, point: Point) -> bool:
    """Whether the memory of all processes together holds the three tensors."""
    if point.limit_bytes is None:
        return True
    return point.procs * (point.limit_bytes // layer.nest.word_bytes) >= layer.nest.total_words


PLAN_KEYS = (
    "words", "grid", "used_procs", "turned", "classes", "stationary", "regime", "memory_bytes", "ratio",
)  # fmt: skip
GAP_KEYS = ("integer", "halo", "bound", "total")


def _record(point: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a point as a row, with the columns of absent plans, gaps and closed forms, too."""
    received, accessed = point["received"], point["accessed"]
    bound, gap = received["bound"], dict.fromkeys(GAP_KEYS) | (received["gap"] or {})
    percent = {f"{key}_percent": _percent(words, bound) for key, words in gap.items()}
    plan = dict.fromkeys(PLAN_KEYS) | (received["plan"] or {})
    plan["classes"] = " ".join(f"{axis}={n}" for axis, n in (plan["classes"] or {}).items()) or None
    form = dict.fromkeys(("case", "words")) | (accessed["closed_form"] or {})
    row = {"received": {**received, "plan": plan, "gap": gap | percent}}
    return flat({**point, **row, "accessed": {**accessed, "closed_form": form}})


def _percent(words: float | None, bound: float) -> float | None:
    """Words in percent of a bound; None where there is none."""
    return None if words is None or bound <= 0 else 100 * words / bound


def _plan_json(layer: Layer, r: Received) -> dict[str, Any] | None:
    if r.plan is None:
        return None
    return {
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


def _point_json(layer: Layer, point: Point) -> dict[str, Any]:
    r, a = point.received, point.accessed
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
            "plan": _plan_json(layer, r),
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


def _received(study: Study) -> list[str]:
    points = study.points
    lines = _table([column for column in _received_columns(study) if column.shown], points)
    lines += ["", "n: segments into which the proof of the bound cuts the work of a process"]
    if any(point.received.gap for point in points):
        lines += ["integer, halo, bound gap: the parts of the gap plan - bound, in percent of the bound"]
    if any(point.received.small for point in points):
        lines += ["/bound *: the bound is small beside what a process owns, so that a ratio says little"]
    lines += [f"bound: for every schedule with {SCHEDULES[0]};", *(f"  {each};" for each in SCHEDULES[1:])]
    lines += [f"  {_load(points)}"]
    if _has_surface(points):
        lines += ["with surface: the same with the surface of regions (docs/bounds.md)"]
    if not all(fits(study.layer, point) for point in points):
        lines.append("does not fit: the memory of all processes is less than the three tensors")
    return lines


def _has_surface(points: Sequence[Point]) -> bool:
    return any(p.received.with_surface > p.received.bound * (1 + 1e-4) for p in points)


@dataclass(frozen=True)
class _Column:
    """A column of a table: its head, the cell of a point, its side, and whether the table has it."""

    head: str
    cell: Callable[[Point], str]
    shown: bool = True
    left: bool = False


def _table(columns: Sequence[_Column], points: Sequence[Point]) -> list[str]:
    rows = [[column.head for column in columns], *([c.cell(point) for c in columns] for point in points)]
    return table(rows, right=[i for i, column in enumerate(columns) if not column.left])


def _where(study: Study) -> list[_Column]:
    """Processes, and memory where it is limited."""
    limited = any(p.limit_bytes is not None for p in study.points)
    return [
        _Column("P", lambda p: str(p.procs)),
        _Column("memory", lambda p: "any" if p.limit_bytes is None else show_bytes(p.limit_bytes), limited),
    ]


def _received_columns(study: Study) -> list[_Column]:
    """The columns of received words; those of plans and relaxations only where some point has one."""
    points = study.points
    plans, gaps = _any_plan(points), any(p.received.gap for p in points)
    relaxed = any(p.received.relaxation is not None for p in points)
    small = not all(fits(study.layer, p) for p in points)
    return [
        *_where(study),
        _Column("bound", lambda p: _words(p.received.bound)),
        _Column("with surface", lambda p: _words(p.received.with_surface), _has_surface(points)),
        _Column("fair", lambda p: _words(p.received.fair_bound), plans),
        _Column("n", lambda p: str(p.received.segments)),
        _Column("regime", lambda p: p.received.regime, left=True),
        _Column(
            "matmul",
            lambda p: _words(p.received.matmul),
            any(p.received.matmul is not None for p in points),
        ),
        _Column("relaxation", lambda p: _words(p.received.relaxation), relaxed),
        _Column("plan", lambda p: _words(p.received.plan.words if p.received.plan else None), plans),
        _Column("/bound", lambda p: p.received.shown_ratio, plans),
        *(_Column(f"{part} gap", partial(_gap, part), gaps) for part in ("integer", "halo", "bound")),
        _Column("plan regime", lambda p: p.received.plan.regime if p.received.plan else "-", plans, True),
        _Column("grid" if plans else "", lambda p: _grid_cell(study, p), plans or small, True),
    ]


def _any_plan(points: Sequence[Point]) -> bool:
    return any(point.received.plan for point in points)


def _load(points: Sequence[Point]) -> str:
    """The work that the bounds assume: that of plans, or equal work where no plan was made."""
    return LOAD if _any_plan(points) else FAIR_LOAD


def _grid_cell(study: Study, point: Point) -> str:
    if point.received.plan:
        return _grid(point.received.plan)
    none = "-" if _any_plan(study.points) else ""
    return none if fits(study.layer, point) else "does not fit"


def _gap(part: str, point: Point) -> str:
    """A part of the gap in percent of the bound."""
    gap = point.received.gap
    percent = None if gap is None else _percent(getattr(gap, part), point.received.bound)
    return "-" if percent is None else f"{round(percent, 1) + 0.0:.1f}%"  # + 0.0: no "-0.0"


def _grid(plan: BestPlan) -> str:
    """The grid, and the axes along which its blocks are cut by input rows."""
    turned = f" by input {', '.join(plan.turned)}" if plan.turned else ""
    classes = f" with classes {described(plan.classes)}" if plan.classes else ""
    return f"{plan.grid.shown()}{turned}{classes}"


def _accessed(study: Study) -> list[str]:
    points = study.points
    lines = _table([column for column in _accessed_columns(study) if column.shown], points)
    notes = []
    if any(_mark(*_table1(p)) or _mark(*_table2(p)) for p in points):
        notes += ["! the table as printed differs from the corrected one (docs/errata.md)"]
    tables = [(p.accessed.bound, p.accessed.table1_corrected[1], p.accessed.table2_corrected) for p in points]
    if any(_below(bound, *words) for bound, *words in tables):
        notes += [
            "corrected and less than the bound: the tables allow tiles that are longer than a loop, T > N;",
            "  Table 2 allows slices that are smaller than their shards, t* < q; Eq. 4 allows neither",
        ]
    forms = [(p.accessed.bound, p.accessed.closed_form[1]) for p in points if p.accessed.closed_form]
    if any(_below(bound, words) for bound, words in forms):
        notes += ["Eq. 4 less than the bound: it leaves out halos of In, which the bound counts"]
    return [*lines, *([""] if notes else []), *notes]


def _below(bound: float, *words: float) -> bool:
    return min(words) < bound * (1 - 1e-6)


def _table1(point: Point) -> tuple[float, float]:
    """Words of Table 1 as printed and as corrected."""
    return point.accessed.table1_printed[1], point.accessed.table1_corrected[1]


def _table2(point: Point) -> tuple[float, float]:
    return point.accessed.table2_printed, point.accessed.table2_corrected


def _mark(printed: float, right: float) -> str:
    return "!" if abs(printed - right) > 1e-9 * right else ""


def _accessed_columns(study: Study) -> list[_Column]:
    points = [p.accessed for p in study.points]
    limited = any(p.limit_bytes is not None for p in study.points)
    relaxed, eq3 = (
        any(each is not None for each in numbers)
        for numbers in ([a.relaxation for a in points], [a.integer for a in points])
    )
    return [
        *_where(study),
        _Column("bound", lambda p: _words(p.accessed.bound)),
        _Column("sequential", lambda p: _words(p.accessed.sequential), limited),
        _Column("Table 1 printed", lambda p: _mark(*_table1(p)) + _case(p.accessed.table1_printed)),
        _Column("Table 1 corrected", lambda p: _case(p.accessed.table1_corrected)),
        _Column("Table 2 printed", lambda p: _mark(*_table2(p)) + _words(p.accessed.table2_printed)),
        _Column("Table 2 corrected", lambda p: _words(p.accessed.table2_corrected)),
        _Column("Eq. 4", lambda p: _words(p.accessed.closed_form and p.accessed.closed_form[1])),
        _Column("case", lambda p: _case_of_eq4(p.accessed), left=True),
        _Column("relaxation", lambda p: _words(p.accessed.relaxation), relaxed),
        _Column("integer", lambda p: _words(p.accessed.integer), eq3),
    ]


def _case(found: tuple[str, float]) -> str:
    """`215 612 2a`."""
    return f"{_words(found[1])} {found[0]}"


def _case_of_eq4(a: Accessed) -> str:
    return f"{a.closed_form[0]} {a.stationary}" if a.closed_form else "-"


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
