"""The table of a sweep: text that fits, CSV and JSON with the same numbers."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from synth.analysis.sweep import Sweep, SweepOptions
from synth.analysis.sweep_table import Study
from synth.layer.layer import Layer, load_layer
from synth.planning.summary import shown_ratio

LAYER = load_layer("examples/conv.yaml")


@pytest.fixture(scope="module")
def study() -> Study:
    return Study.of(LAYER, Sweep(LAYER.nest).points([1, 4, 64], [2**17, 2**20, None]))


def test_the_surface_of_regions_has_a_column_where_it_is_larger() -> None:
    head = Layer.conv2d((1, 64, 128, 128), 2, 3, padding=1)
    study = Study.of(head, Sweep(head.nest, SweepOptions(relaxations=False)).points([4, 9], [None]))
    assert " with surface " in str(study)
    for point in study.to_json()["points"]:
        r = point["received"]
        assert r["bound"] < r["bound_with_surface"] <= r["plan"]["words"]
        assert r["plan"]["turned"] == ["h", "w"]
    assert "h=2 x w=2 by input h, w" in str(study)
    plain = Layer.matmul(64, 64, 64)
    points = Sweep(plain.nest, SweepOptions(False, False)).points([4], [None])
    assert "with surface" not in str(Study.of(plain, points))


def test_text(study: Study) -> None:
    text = str(study)
    assert "received words per process" in text
    assert "accessed words per process" in text
    assert "!" in text  # Table 1 as printed lacks case 1b at P = 1
    assert all(len(line) <= 150 for line in text.splitlines())


def test_csv_has_the_numbers_of_json(study: Study) -> None:
    rows = list(csv.DictReader(io.StringIO(study.to_csv())))
    points = json.loads(json.dumps(study.to_json()))["points"]
    assert len(rows) == len(points) == 9
    for row, point in zip(rows, points, strict=True):
        assert int(row["procs"]) == point["procs"]
        assert float(row["received.bound"]) == point["received"]["bound"]
        plan = point["received"]["plan"]
        assert row["received.plan.words"] == ("" if plan is None else str(plan["words"]))
        gap = point["received"]["gap"]
        assert row["received.gap.integer"] == ("" if gap is None else str(gap["integer"]))
        if row["received.gap.integer_percent"]:
            percent = 100 * gap["integer"] / point["received"]["bound"]
            assert float(row["received.gap.integer_percent"]) == pytest.approx(percent)


def heads(text: str) -> list[list[str]]:
    """The heads of both tables."""
    lines = [line for line in text.splitlines() if re.match(r" *P  ", line)]
    return [re.split(r" {2,}", line.strip()) for line in lines]


def test_the_columns_of_csv_are_those_of_any_study(study: Study) -> None:
    dilated = load_layer("examples/conv1d.yaml")
    plans = Sweep(dilated.nest, SweepOptions(relaxations=False)).points([64], [2**20, None])
    found = Study.of(dilated, plans)
    bounds_only = Study.of(LAYER, Sweep(LAYER.nest, SweepOptions(False, False)).points([4], [None]))
    (head, *_), *others = (each.to_csv().splitlines() for each in (study, found, bounds_only))
    assert [each[0] for each in others] == [head, head]
    assert len(set(head.split(","))) == len(head.split(","))
    assert plans[0].received.plan is not None
    assert plans[0].received.plan.classes == (("w", 8),)
    assert found.records()[0]["received.plan.classes"] == "w=8"


def test_a_column_has_a_name_of_its_own_and_a_number_at_some_point(study: Study) -> None:
    for head in heads(str(study)):
        assert len(set(head)) == len(head)
    first, second = heads(str(study))
    assert {"plan regime", "integer gap", "halo gap", "bound gap"} <= set(first)
    assert {"Table 1 corrected", "Table 2 corrected"} <= set(second)
    text = str(Study.of(LAYER, Sweep(LAYER.nest, SweepOptions(False, False)).points([1, 4], [None])))
    assert heads(text) == [
        ["P", "bound", "n", "regime"],
        [
            "P",
            "bound",
            *(f"Table {i} {what}" for i in (1, 2) for what in ("printed", "corrected")),
            "Eq. 4",
            "case",
        ],
    ]
    assert "n: segments" in text
    assert "plan beside the bound" not in text
    assert "no process does more than an equal part" in text


def test_a_closed_form_below_the_bound_is_explained() -> None:
    """On one process all words of the tensors are accessed: so says Eq. 4, and so do not the tables."""
    padded = Layer.conv2d((8, 64, 28, 28), 128, 3, stride=2, padding=1)
    (point,) = Sweep(padded.nest, SweepOptions(False, False)).points([1], [None])
    accessed = point.accessed
    assert accessed.bound == pytest.approx(padded.nest.total_words)
    assert accessed.closed_form is not None
    assert accessed.table1_corrected[1] < accessed.bound == pytest.approx(accessed.closed_form[1])
    text = str(Study.of(padded, [point]))
    assert "the tables allow tiles that are longer than a loop, T > N" in text
    assert "halos of In" not in text
    bare = Layer.conv2d((8, 64, 28, 28), 128, 7)
    text = str(Study.of(bare, Sweep(bare.nest, SweepOptions(False, False)).points([1], [None])))
    assert "Eq. 4 less than the bound: it leaves out halos of In" in text
    wide = str(Study.of(LAYER, Sweep(LAYER.nest, SweepOptions(False, False)).points([64], [None])))
    assert "less than the bound" not in wide


def test_no_plan_is_a_dash_not_a_number(study: Study) -> None:
    short = next(p for p in study.points if p.procs == 64 and p.limit_bytes == 2**17)
    assert short.received.plan is None
    assert short.received.ratio is None


def test_changes_are_named() -> None:
    text = str(Study.of(LAYER, Sweep(LAYER.nest).points([1, 64], [None])))
    assert "local up to P = 1, 1D from P = 2" in text


def test_memory_that_cannot_hold_the_tensors_is_marked() -> None:
    small = load_layer("examples/small.yaml")
    points = Sweep(small.nest, SweepOptions(plans=False, relaxations=False)).points(
        [1, 256, 4096], [1024, None]
    )
    study = Study.of(small, points)
    assert small.nest.total_words == 79872
    told = [(p["procs"], p["memory_bytes"], p["fits"]) for p in study.to_json()["points"]]
    assert told == [
        *((1, None, True), (1, 1024, False)),
        *((256, None, True), (256, 1024, False)),
        *((4096, None, True), (4096, 1024, True)),
    ]
    rows = [line for line in str(study).splitlines() if line.endswith("does not fit")]
    assert [row.split()[0] for row in rows] == ["1", "256"]
    assert "does not fit: the memory of all processes is less than the three tensors" in str(study)
    assert "does not fit" not in str(Study.of(small, points[:1]))


def test_a_small_bound_gives_no_ratio_to_people() -> None:
    """The first layer of CosmoFlow on 16 processes: the bound is a small rest of what they own."""
    layer = load_layer("examples/cosmoflow/conv1.yaml")
    study = Study.of(layer, Sweep(layer.nest, SweepOptions(relaxations=False)).points([16], [None]))
    (point,) = study.points
    assert point.received.ratio is not None
    assert point.received.ratio > 2
    assert point.received.shown_ratio == f"{shown_ratio(point.received.ratio)}*"
    assert "the bound is small beside what a process owns" in str(study)
    assert all(point.received.shown_ratio in shown for shown in (str(study), study._repr_html_()))
