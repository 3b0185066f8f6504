"""Pictures: of the format that the name asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.analysis.sweep import Sweep, SweepOptions
from synth.analysis.sweep_table import Study
from synth.base.errors import UsageError
from synth.cli.plot import PICTURES
from synth.planning.derive import plan as plan_layer
from synth.planning.plan import Plan
from synth.reports.plot import draw, picture_format, plan_figure, sweep_figure

STARTS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_layer("examples/small.yaml", 8, memory="1MiB")


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_of_a_plan(plan: Plan, picture: str, tmp_path: Path) -> None:
    for ending, start in STARTS.items():
        file = tmp_path / f"p.{ending}"
        draw(plan_figure(plan, picture), str(file))
        assert file.read_bytes().startswith(start)


@pytest.mark.parametrize("memory", [[None], [2**14, 2**16, 2**18]])
def test_pictures_of_a_sweep(plan: Plan, memory: list[int | None], tmp_path: Path) -> None:
    points = Sweep(plan.nest, SweepOptions(relaxations=False)).points([1, 4, 16], memory)
    draw(sweep_figure(Study.of(plan.layer, points)), str(tmp_path / "s.svg"))
    assert (tmp_path / "s.svg").read_text(encoding="utf-8").count("<path") > 5


def test_unknown_format() -> None:
    with pytest.raises(UsageError, match=r"x\.jpg: a picture is a \.svg, \.png or \.pdf file"):
        picture_format("x.jpg")
