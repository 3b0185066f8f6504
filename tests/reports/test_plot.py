"""Pictures: of the format that the name asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synth.analysis.sweep import Sweep, SweepOptions
from synth.analysis.sweep_table import Study
from synth.base.errors import UsageError
from synth.cli.plans.plot import PICTURES
from synth.layer.layer import Layer
from synth.planning.derive import plan as plan_layer
from synth.planning.plan import Plan
from synth.reports.plot import draw, picture_format, plan_figure, sweep_figure
from synth.reports.text_costs import memory_stages

STARTS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_layer("examples/small.yaml", 8, memory="1MiB")


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.one_in(5)
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


def _texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_the_grid_shows_the_groups_of_each_shared_tensor() -> None:
    made = plan_layer("examples/conv.yaml", 16, grid={"b": 4, "c": 2, "k": 2})
    panels = plan_figure(made, "grid").axes
    assert [axes.get_title(loc="left") for axes in panels] == [
        "In: 8 groups of 2 along k",
        "Ker: 4 groups of 4 along b",
        "Out: 8 groups of 2 along c",
    ]
    for axes, group in zip(panels, ({0, 1}, {0, 4, 8, 12}, {0, 2}), strict=True):
        assert _texts(axes) == [str(rank) for rank in range(16)]
        bold = {int(text.get_text()) for text in axes.texts if text.get_fontweight() == "bold"}
        assert bold == group
        colours = axes.images[0].get_array().reshape(16, 3)
        assert {rank for rank in range(16) if (colours[rank] == colours[0]).all()} == group


def test_strategies_are_sorted_with_their_ratios(plan: Plan) -> None:
    (axes,) = plan_figure(plan, "strategies").axes
    words = [float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 1]
    assert words == sorted(words)
    assert axes.get_yticklabels()[0].get_text() == "this plan"
    assert any(text.endswith("1.00×") for text in _texts(axes))


def test_memory_has_the_phases_of_the_plan(plan: Plan) -> None:
    (axes,) = plan_figure(plan, "memory").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(memory_stages(plan))[::-1]
    assert axes.get_xlabel() == "MiB per process, at most"
    assert "limit 1 MiB " in _texts(axes)


def test_the_bound_over_memory_is_smooth_and_below_the_table(plan: Plan) -> None:
    points = Sweep(plan.nest, SweepOptions(relaxations=False)).points([16], [2**14, 2**16, 2**18])
    (axes,) = sweep_figure(Study.of(plan.layer, points)).axes
    (curve,) = (line for line in axes.lines if line.get_label() == "lower bound")
    drawn = dict(zip(*(map(float, each) for each in curve.get_data()), strict=True))
    assert len(drawn) > 50
    assert list(drawn.values()) == sorted(drawn.values(), reverse=True)
    for point in points:
        assert point.limit_bytes is not None
        assert drawn[point.limit_bytes] <= point.received.bound * (1 + 1e-9)


@pytest.mark.parametrize("name", ["down", "a layer with a long name that says where it stands"])
def test_no_title_is_cut_off(name: str) -> None:
    """Wide labels of ticks leave little room; the title has as many lines as it needs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    layer = Layer.conv2d((8, 64, 28, 28), 128, 3, stride=2, padding=1, name=name)
    points = Sweep(layer.nest, SweepOptions(relaxations=False)).points([4], [2**19, 2**20])
    made = plan_layer(layer, 8)
    for figure in (sweep_figure(Study.of(layer, points)), plan_figure(made, "strategies")):
        FigureCanvasAgg(figure).draw()
        (axes,) = figure.axes
        right = axes._left_title.get_window_extent().x1
        assert "float32" in axes.get_title(loc="left") or "strategies" in axes.get_title(loc="left")
        assert right <= figure.bbox.x1
