"""The HTML report: self-contained, small, reproducible, safe whatever a layer is called."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from synth.analysis.today import today
from synth.base.errors import InputError
from synth.planning.derive import plan as plan_layer
from synth.planning.plan import Plan
from synth.planning.plan_file import parse_plan
from synth.reports.html.html_data import columns, received_runs, report_data, timeline
from synth.reports.html.html_layer import html_report, memory_bars, strategies, today_rows

LARGEST = 300_000  # bytes


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_layer("examples/conv.yaml", 64)


@pytest.fixture(scope="module")
def page(plan: Plan) -> str:
    return html_report(plan)


def test_self_contained_and_small(page: str) -> None:
    assert len(page.encode()) < LARGEST
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\((?!#)|https?://""", page)
    assert "default-src 'none'" in page


def test_four_thousand_ranks_stay_small() -> None:
    large = html_report(plan_layer("examples/conv.yaml", 4096))
    assert len(large.encode()) < LARGEST


def test_uneven_ranks_stay_small() -> None:
    large = html_report(plan_layer("examples/resnet50/conv1_7x7.yaml", 1000))
    assert len(large.encode()) < LARGEST


def test_same_plan_same_bytes(plan: Plan, page: str) -> None:
    again = parse_plan(json.dumps(plan.to_json()), "plan.json")
    assert html_report(again) == page


def test_names_are_text(plan: Plan) -> None:
    nasty = "</script><script>alert(1)</script>&\"'{{ 1 }}"
    page = html_report(replace(plan, layer=replace(plan.layer, name=nasty)))
    assert "<script>alert" not in page
    assert "&lt;/script&gt;" in page


def test_the_plan_stands_beside_what_is_in_use_today(plan: Plan, page: str) -> None:
    rows = {row["name"]: row for row in today_rows(today(plan))}
    assert list(rows) == ["this plan", "DDP", "FSDP2", "tensor", "spatial"]
    assert rows["this plan"]["words"] == "164 864"
    assert rows["FSDP2"]["times"] == "3.47"
    table = page.partition('id="h-today"')[2].partition("</table>")[0]
    for row in rows.values():
        assert row["words"] in table
        assert row["memory"] in table


def test_numbers_are_those_of_the_plan(plan: Plan, page: str) -> None:
    for number in ("164 864", "146 401", plan.id, "b=8 x c=2 x k=4"):
        assert number in page


def test_runs_hold_every_rank(plan: Plan) -> None:
    uneven = plan_layer("examples/resnet50/conv1_7x7.yaml", 60)
    for each in (plan, uneven):
        runs = received_runs(each)
        assert sum(run[0] for run in runs) == each.used_procs
        assert max(sum(run[1:4]) for run in runs) == each.words["total"]


def test_timeline_has_every_round(plan: Plan) -> None:
    steps = list(timeline(plan))
    rounds = [r for r in plan.schedule.rounds() if r.moves or r.reductions]
    assert [s["phase"] for s in steps] == [r.phase for r in rounds]
    for step, each in zip(steps, rounds, strict=True):
        assert {t for t, _ in step["moves"]} == {m.tensor for m in (*each.moves, *each.reductions)}


def test_training_has_three_passes() -> None:
    made = plan_layer("examples/small.yaml", 8, pass_="training")
    data = report_data(made)
    assert {step["pass"] for step in data["steps"]} == {0, 1, 2}
    assert html_report(made)


def test_one_process_has_nothing_to_show_but_shows_it() -> None:
    alone = plan_layer("examples/small.yaml", 1)
    assert html_report(alone)
    assert strategies(alone)[0]["words"] == "0"


def test_bars_and_columns(plan: Plan) -> None:
    assert max(bar["percent"] for bar in memory_bars(plan)) == 100
    assert plan.used_procs % columns(plan) == 0
    assert next(row["name"] for row in strategies(plan)) == "this plan"


@pytest.mark.parametrize(
    ("key", "value"), [("schema", "other/1"), ("id", "000000000000"), ("words", {}), ("grid", {"b": 1})]
)
def test_tampered_and_foreign_plans_are_refused(plan: Plan, key: str, value: object) -> None:
    with pytest.raises(InputError, match=r"^plan\.json: .*write the plan anew"):
        parse_plan(json.dumps({**plan.to_json(), key: value}), "plan.json")
