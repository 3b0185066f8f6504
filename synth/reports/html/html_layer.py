"""`synth report` of a layer plan: one self-contained HTML file with pictures, a script and two themes.

All text and numbers are decided here; the template only places them. `html_network` makes the page of a
network plan; `html_page` is the frame of both.
"""

from __future__ import annotations

import math
from typing import Any

from synth.analysis.today import today
from synth.analysis.tradeoff import memory_curve
from synth.base.units import show_bytes, show_words
from synth.planning.comparison import Alternative, by_words, compared
from synth.planning.decisions import phrases
from synth.planning.one_line import one_line
from synth.planning.plan import Plan
from synth.planning.summary import algorithm, not_proven, ratio_of
from synth.reports.html.html_data import MOST_STEPS, report_data
from synth.reports.html.html_page import render
from synth.reports.html.svg_charts import tradeoff_chart, words_chart
from synth.reports.html.today_rows import today_rows
from synth.reports.text import axes_table, ownership
from synth.reports.text_costs import memory_stages


def html_report(plan: Plan) -> str:
    """The HTML page of a plan. The same plan gives the same bytes."""
    from markupsafe import Markup

    return render(
        "report",
        report_data(plan),
        label=f"plan {plan.id}",
        kicker=f"plan {plan.id} · {plan.pass_} · {one_line(plan)}",
        title=plan.layer.name,
        subtitle="; ".join([str(plan.layer), *phrases(plan)]),
        tiles=tiles(plan),
        axes=axes_table(plan),
        ownership=[" ".join(line.split()) for line in ownership(plan)],
        strategies=strategies(plan),
        today=today_rows(today(plan)),
        memory=memory_bars(plan),
        words_chart=Markup(words_chart(plan)),
        tradeoff_chart=Markup(tradeoff_chart(plan, memory_curve(plan))),
        assumptions=plan.assumptions,
        cut_short=sum(t.steps for t in plan.pass_plans) > MOST_STEPS,
    )


def tiles(plan: Plan) -> list[tuple[str, str, str]]:
    """The tiles at the top of the page: (value, name, remark)."""
    idle = plan.procs - plan.used_procs
    total = plan.words["total"]
    limit = f"of {show_bytes(plan.limit_bytes)}" if plan.limit_bytes else "no limit was set"
    ratio, caution = ratio_of(total, plan.bound)
    remark = caution or "1: no schedule with these assumptions receives fewer"
    name, _, kind = algorithm(plan).rpartition(" ")
    steps = f"{plan.first.steps} step{'s' * (plan.first.steps > 1)}"
    return [
        (f"{plan.used_procs}", "processes", f"{idle} of {plan.procs} idle" if idle else "all of them work"),
        (name, kind, f"{plan.first.stationary} stationary, {steps}"),
        (
            show_words(total),
            "words received",
            "; ".join(
                [f"at most, by any rank: {show_bytes(total * plan.nest.word_bytes)}", *not_proven(plan)]
            ),
        ),
        (show_words(plan.bound.words), "lower bound", "at this load; assumptions below"),
        (ratio, "words / bound", remark),
        (show_bytes(plan.used_bytes), "memory", f"per process, at most; {limit}"),
    ]


def strategies(plan: Plan) -> list[dict[str, Any]]:
    """The rows of the comparison, fewest words first; `to`, `least`: places on a log scale, in percent."""
    rows = compared(plan)
    known = [float(each.words) for each in rows if each.words]
    low = min([*known, *([plan.bound.words] if plan.bound.words >= 1 else [])], default=1.0)
    high = max([*known, low * 2])

    def place(words: float) -> float:
        return round(100 * math.log(max(words, low) / low) / math.log(high / low), 2)

    def row(each: Alternative) -> dict[str, Any]:
        words, bound = each.words, each.bound or 0
        return {
            "name": each.name,
            "grid": each.grid.shown() if each.grid else "-",
            "words": "-" if words is None else show_words(words),
            "times": f"{words / plan.words['total']:.2f}" if words and plan.words["total"] else "-",
            "why": each.why,
            "kind": "mine" if each is rows[0] else "fair" if each.feasible else "unfair",
            "to": place(words or low),
            "bound": show_words(bound),
            "least": place(bound) if bound >= low else None,
        }

    return [row(each) for each in by_words(rows)]


def memory_bars(plan: Plan) -> list[dict[str, Any]]:
    """The memory of each stage; `percent` is relative to the largest."""
    phases = memory_stages(plan)
    size = plan.nest.word_bytes
    most = max([*phases.values(), 1])
    return [
        {"name": name, "bytes": show_bytes(words * size), "percent": round(100 * words / most, 2)}
        for name, words in phases.items()
    ]
