"""Plans and bounds in notebooks: a small fragment of HTML with a style of its own and no script.

Texts and numbers are those of the reports; `synth report` makes the whole page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from synth.analysis.sweep_table import Study, fits
from synth.base.units import show_bytes, show_words
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_file import NetworkPlanFile
from synth.planning.plan import Plan
from synth.reports.html import html_layer, html_network
from synth.reports.html.svg_charts import words_chart
from synth.reports.text import axes_table

MOST_ROWS = 60  # of a table; the rest is left out, and counted

STYLE = """
.synth{max-width:900px;font-size:13px;line-height:1.4;--in:#0072b2;--ker:#d98200;--out:#00875f;--ink:currentColor}
.synth p{margin:2px 0 8px;opacity:.75}.synth h4{margin:4px 0}
.synth ul{display:flex;flex-wrap:wrap;gap:8px;list-style:none;margin:8px 0;padding:0}
.synth li{border:1px solid #8886;border-radius:6px;padding:4px 10px;display:flex;flex-direction:column}
.synth li span{opacity:.7;font-size:11px}.synth li strong{font-size:16px}
.synth table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.synth td,.synth th{padding:2px 10px 2px 0;text-align:left;border-bottom:1px solid #8884}
.synth svg{max-width:620px;display:block}.synth svg text{font-size:12px;fill:currentColor}
.synth .rule{stroke:#8884}.synth .floor{stroke:currentColor;stroke-width:2;stroke-dasharray:6 3}
.synth .fill-in{fill:var(--in)}.synth .fill-ker{fill:var(--ker)}.synth .fill-out{fill:var(--out)}
"""


def inline(value: Plan | NetworkPlan | NetworkPlanFile | Study) -> str:
    """The fragment of a plan of a layer or a network, or of a study of bounds."""
    if isinstance(value, Plan):
        return _layer(value)
    if isinstance(value, Study):
        return _study(value)
    return _network(value.to_json())


def _layer(plan: Plan) -> str:
    head, *rows = axes_table(plan)
    legend = " ".join(
        f'<span style="color:var(--{each.lower()})">■</span> {each}' for each in ("In", "Ker", "Out")
    )
    return _fragment(
        plan.layer.name,
        f"plan {plan.id}, {plan.pass_}: {plan.layer}",
        _tiles(html_layer.tiles(plan)),
        _table(head, rows),
        f"<p>words that every rank receives: {legend}</p>{words_chart(plan)}",
        f"<p>The bound is for every schedule with {escape('; '.join(plan.assumptions))}.</p>",
    )


def _network(data: dict[str, Any]) -> str:
    rows = [
        [row["name"], row["grid"], row["stationary"], row["cost"], row["moved"] or "-"]
        for row in html_network.rows(data)
    ]
    return _fragment(
        data["name"],
        f"network plan, {data['pass']}: {len(rows)} planned layers on {data['procs']} processes",
        _tiles(html_network.tiles(data)),
        _table(["layer", "grid", "stationary", "cost", "moved in"], rows),
    )


def _study(study: Study) -> str:
    rows = []
    for point in study.points:
        found = point.received
        plan = found.plan
        rows.append(
            [
                str(point.procs),
                "any" if point.limit_bytes is None else show_bytes(point.limit_bytes),
                show_words(found.bound),
                found.regime,
                "-" if plan is None else show_words(plan.words),
                found.shown_ratio,
                plan.grid.shown() if plan else "-" if fits(study.layer, point) else "does not fit",
            ]
        )
    head = ["processes", "memory each", "lower bound", "regime", "best plan", "plan / bound", "grid"]
    return _fragment(
        study.layer.name,
        f"words that one process receives, at most: {study.layer}",
        _table(head, rows),
    )


def _fragment(title: str, remark: str, *parts: str) -> str:
    head = f"<h4>{escape(title)}</h4><p>{escape(remark)}</p>"
    return f'<div class="synth"><style>{STYLE}</style>{head}{"".join(parts)}</div>'


def _tiles(tiles: Iterable[tuple[str, str, str]]) -> str:
    items = (
        f"<li><span>{escape(name)}</span><strong>{escape(value)}</strong><span>{escape(remark)}</span></li>"
        for value, name, remark in tiles
    )
    return f"<ul>{''.join(items)}</ul>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows[:MOST_ROWS]]
    more = f"<p>and {len(rows) - MOST_ROWS} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><tr>{cells}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{more}"
