"""The table of a sweep: text that fits, CSV and JSON with the same numbers."""

from __future__ import annotations

import csv
import io
import json

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
        assert row.get("received.plan.words", "") == ("" if plan is None else str(plan["words"]))


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
