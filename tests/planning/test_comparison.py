"""The named strategies, as points of the one space."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers

from synth.base.errors import InfeasibleError
from synth.layer.axes import AXES
from synth.layer.layer import Layer
from synth.planning import comparison
from synth.planning.comparison import Alternative, compare
from synth.planning.derive import plan
from synth.planning.plan import Plan
from synth.reports.text import report
from synth.search.branch_and_bound import search_or_floor
from synth.search.fastest import SLACK
from synth.search.request import Optimum, Request
from synth.search.strategies import STRATEGIES, Strategy

NAMES = [strategy.name for strategy in STRATEGIES]
CONV4 = Layer.conv2d([32, 256, 14, 14], 256, 3, padding=1)


def by_name(made: Plan) -> dict[str, Alternative]:
    return {each.name: each for each in compare(made)}


@settings(max_examples=40)
@given(layers(6), st.integers(1, 16))
def test_the_plan_is_never_beaten_by_a_feasible_strategy(layer: Layer, procs: int) -> None:
    made = plan(layer, procs)
    rows = compare(made)
    assert [each.name for each in rows] == NAMES
    for each, strategy in zip(rows, STRATEGIES, strict=True):
        if each.grid is None:
            assert (each.words, each.used_bytes, each.feasible) == (None, None, False)
            continue
        assert each.grid.size <= procs
        assert all(getattr(each.grid, axis) == 1 for axis in AXES if axis not in strategy.axes)
        assert each.feasible == (not each.why)
        assert each.words is not None
        assert each.bound is not None
        assert each.words >= each.bound * (1 - 1e-9)  # that of its own load
        if each.feasible:
            assert each.words is not None
            assert each.words >= made.words["total"]
    assert by_name(made)["3D"].feasible


@settings(max_examples=15)
@given(layers(4), st.integers(2, 8), st.floats(0.4, 1))
def test_the_same_under_a_memory_limit(layer: Layer, procs: int, share: float) -> None:
    assume(layer.nest.extents.size < 2000)
    try:
        made = plan(layer, procs, memory=max(4, int(share * plan(layer, procs).used_bytes)))
    except InfeasibleError:
        assume(False)
        raise
    for each, strategy in zip(compare(made), STRATEGIES, strict=True):
        if each.feasible:
            assert made.limit_bytes is not None
            assert each.used_bytes is not None
            assert each.used_bytes <= made.limit_bytes
            assert each.words is not None
            assert each.words >= made.words["total"]
        if each.name != "3D" and contains(strategy, made):
            assert each.feasible
            assert each.words == made.words["total"]


def test_a_strategy_with_more_work_stands_beside_its_own_bound() -> None:
    layer = Layer.conv3d([4, 32, 64, 64, 64], 64, 3, stride=2, padding=1)
    made = plan(layer, 48)
    data = by_name(made)["data"]
    assert data.words is not None
    assert data.bound is not None
    assert data.words < made.bound.words  # it does 12 times the work in a process
    assert data.words >= data.bound
    assert not data.feasible


def contains(strategy: Strategy, made: Plan) -> bool:
    """Whether a plan is one of a strategy."""
    split = {axis for axis in AXES if getattr(made.grid, axis) > 1}
    stationary = {each.stationary for each in made.pass_plans}
    return (
        split <= set(strategy.axes)
        and stationary == {strategy.stationary}
        and not (made.turned or made.classes)
    )


def test_a_search_that_ends_early_takes_the_plan_where_it_is_of_the_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = plan(CONV4, 64, memory=640_000)
    containing = [each.name for each in STRATEGIES if contains(each, made)]
    assert containing == ["2.5D", "3D"]
    whole = by_name(made)

    def ended(request: Request, lean_steps: int = 0) -> tuple[Optimum | None, int | None]:
        return (None, 0) if request.limit_words is not None else search_or_floor(request)

    monkeypatch.setattr(comparison, "search_or_floor", ended)
    rows = by_name(made)
    for name in containing[:-1]:
        assert rows[name] == whole[name]
        assert rows[name].words == made.words["total"]
    assert rows["stationary-w"].why == "no plan within the memory limit was found"


def test_a_layer_of_a_network() -> None:
    rows = by_name(plan(CONV4, 64))
    assert rows["3D"].words == rows["2.5D"].words == 164864
    assert rows["data"].why == "2.00 times the least work of any grid"  # 32 samples, 64 processes
    assert rows["data+filter"].words == rows["2D"].words == 213504
    assert rows["channel"].feasible
    assert rows["channel"].grid is not None
    assert rows["channel"].grid.c == 64


def test_what_memory_forbids_is_shown_and_marked() -> None:
    """The table keeps the 3D row: it shows what the limit costs."""
    free = by_name(plan(CONV4, 64))
    tight = plan(CONV4, 64, memory=630_000)
    rows = by_name(tight)
    assert rows["3D"].words == free["3D"].words
    assert rows["3D"].why == "needs more than the memory limit"
    assert not rows["3D"].feasible
    assert rows["2.5D"].words == 213504
    assert tight.used_bytes <= 630_000


@pytest.mark.slow
def test_under_the_objective_time_every_strategy_is_at_its_fastest() -> None:
    made = plan(CONV4, 16, memory="40MB", objective="time", machine="lassen", pass_="training")
    assert made.timed is not None
    seconds = made.timed[1].seconds
    rows = compare(made)
    assert [each.name for each in rows] == NAMES
    for each, strategy in zip(rows, STRATEGIES, strict=True):
        assert each.grid is not None
        assert each.seconds is not None
        assert all(getattr(each.grid, axis) == 1 for axis in AXES if axis not in strategy.axes)
        if each.feasible:
            assert each.seconds >= seconds / (1 + SLACK)
    shown = [
        line for line in report(made).splitlines() if " ms " in line and line.strip().startswith("filter ")
    ]
    assert f"{1e3 * (by_name(made)['filter'].seconds or 0):.4g} ms" in shown[0]
    assert made.to_json()["alternatives"][0]["seconds"] == by_name(made)["data"].seconds
    without = plan(CONV4, 16).to_json()["alternatives"][0]
    assert "seconds" not in without
