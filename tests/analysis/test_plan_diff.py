"""Two plans side by side: every decision that differs, and no other; numbers of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import CASES

import synth
from synth.analysis.plan_diff import PlanDiff
from synth.base.errors import UsageError
from synth.planning.plan_json import to_json

ROOT = Path(__file__).parents[2]
CONV, NET = ROOT / "examples" / "conv.yaml", ROOT / "examples" / "networks" / "tutorial.yaml"


def decisions(found: PlanDiff) -> dict[str, tuple[str | None, str | None]]:
    return {each.what: (each.one, each.other) for each in found.decisions}


def numbers(found: PlanDiff) -> dict[str, tuple[float | None, float | None]]:
    return {each.what: (each.one, each.other) for each in found.numbers}


def test_layers() -> None:
    one, other = synth.plan(CONV, 64), synth.plan(CONV, 64, as_="b=16 k=4; In; k/2")
    found = synth.diff(one, other)
    assert decisions(found) == {
        "grid": ("b=8 x c=2 x k=4", "b=16 x k=4"),
        "ranks by": ("b, c, k", "b, k"),
        "forward": ("Out; c/4", "In; k/2"),
    }
    assert numbers(found)["received together"] == (one.words["total"], other.words["total"])
    assert numbers(found)["memory"] == (one.used_bytes, other.used_bytes)
    assert next(each for each in found.numbers if each.what == "received together").ratio == pytest.approx(
        other.words["total"] / one.words["total"]
    )
    assert "grid      b=8 x c=2 x k=4  b=16 x k=4" in str(found)
    assert numbers(found)["multiply-adds"] == (one.bound.most_work, other.bound.most_work)
    assert "\nmultiply-adds, padding left out  " in str(found)
    assert {row["what"] for row in found.records()} >= {"grid", "memory"}


def test_time_and_machine() -> None:
    timed = synth.plan(CONV, 64, objective="time", machine="lassen")
    found = synth.diff(synth.plan(CONV, 64), timed)
    assert decisions(found)["machine"] == (None, "lassen")
    assert numbers(found)["time"] == (None, timed.timed[1].seconds)


@pytest.mark.parametrize("name", ["classes", "input_rows", "training_tiles", "placed", "idle", "einsum_3d"])
def test_a_plan_beside_itself_and_its_file(name: str, tmp_path: Path) -> None:
    """The file of a plan says what the plan says."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(to_json(CASES[name])))
    found = synth.diff(CASES[name], path)
    assert found.same
    assert all(one == other for one, other in numbers(found).values())
    assert "both plans decide the same" in str(found)


def test_a_file_that_leaves_out_what_follows_is_compared(tmp_path: Path) -> None:
    """A reader of plans asks for decisions; numbers follow from them."""
    plan = synth.plan("examples/conv.yaml", 8, objective="time", machine="lassen")
    path = tmp_path / "p.json"
    for left_out in ("", "assumptions", "bounds"):
        path.write_text(json.dumps({key: each for key, each in to_json(plan).items() if key != left_out}))
        found = synth.diff(plan, path)
        assert found.same
        assert all(one == other for one, other in numbers(found).values())


def test_two_layers_differ_in_the_layer() -> None:
    found = decisions(synth.diff(CASES["data"], CASES["spatial"]))
    assert found.keys() >= {"layer", "grid"}
    assert all("extents" not in str(text) for text in found["layer"])


def test_networks(tmp_path: Path) -> None:
    one = synth.plan(NET, 4, pass_="training")
    other: Any = synth.plan(NET, 8, pass_="training")
    found = synth.diff(one, other)
    assert found.kind == "network"
    assert decisions(found) == {"processes": ("4", "8")}
    for name, cost in found.costs.items():
        place = [node.name for node in one.network.planned].index(name)
        assert (cost.one, cost.other) == (one.layer_costs[place], other.layer_costs[place])
        grids = one.placed_grids[place].grid, other.placed_grids[place].grid
        differs = any(each.what == "grid" for each in found.layers.get(name, ()))
        assert differs == (grids[0] != grids[1])
    assert numbers(found)["words of the plan"] == (one.cost, other.cost)
    assert not synth.diff(one, one).layers


def test_plans_for_words_and_for_time_have_no_common_cost() -> None:
    timed = synth.plan(NET, 4, pass_="training", objective="time", machine="lassen")
    found = synth.diff(synth.plan(NET, 4, pass_="training"), timed)
    assert {(cost.one, cost.other) for cost in found.costs.values()} == {(None, None)}
    assert numbers(found)["time"] == (None, timed.cost)
    assert decisions(found)["planned for"] == ("words", "time")


def test_two_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="one is the plan of a layer, and other that of a network; compare"):
        synth.diff(synth.plan(CONV, 4), synth.plan(NET, 4))
    with pytest.raises(UsageError, match="3 is no plan"):
        synth.diff(3, 4)  # type: ignore[arg-type]
