"""Changes in place between a forward and a backward pass are refused where one process refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPools

pytestmark = pytest.mark.ranks
CUTS = [(2, {"b": 2}), (2, {"h": 2}), (2, {"k": 2}), (2, {"c": 2}), (4, {"h": 2, "k": 2})]
SAID = "inplace operation"


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(Path(__file__).with_name("versions_ranks.py"), tmp_path_factory.mktemp("ranks")) as pools:
        yield pools


@pytest.mark.parametrize(
    "trained",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["all layers", "the first weight is fixed"],
)
@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
@pytest.mark.one_in(16)
def test_every_cut_refuses_what_one_process_refuses(
    procs: int, plan: Any, trained: bool, pools: RankPools
) -> None:
    first, *others = pools(procs).call("cases", plan, trained)
    for name, (said, refused, apart) in first.items():
        assert (SAID in said) == refused, (name, said)
        assert not refused or "as it was, but it has been modified by an" in said
        assert apart < 1e-9, name
        for other in others:
            assert other[name][0] == said, name
    refusals = {name for name, (_, refused, _) in first.items() if refused}
    assert {
        "an optimizer's step",
        "a step on lists",
        "the last weight",
        "load_state_dict",
    } <= refusals
    assert not {"the last bias", "nothing", "a batch of which another tensor is made"} & refusals


@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
def test_a_change_of_the_own_part_is_refused(procs: int, plan: Any, pools: RankPools) -> None:
    for said in pools(procs).call("own_part", plan):
        assert said.startswith("the backward pass of forward pass 1 needs the batch as it was, but it has")
        assert said.endswith("call backward() before, or change a clone()")


@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
@pytest.mark.parametrize(("kind", "saved"), [("to tanh", True), ("one layer", False)])
def test_a_change_of_an_output_is_refused_where_it_was_saved(
    kind: str, saved: bool, procs: int, plan: Any, pools: RankPools
) -> None:
    for said, refused, apart in pools(procs).call("output", plan, kind):
        assert refused == saved
        assert (SAID in said) == saved
        assert apart < 1e-9


@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
def test_a_scattered_batch_is_a_copy(procs: int, plan: Any, pools: RankPools) -> None:
    assert pools(procs).call("scattered_views", plan) == [0.0] * procs


def test_a_second_backward_pass_behind_a_step_is_refused(pools: RankPools) -> None:
    for first, second in pools(2).call("twice", {"k": 2}):
        assert first == ""
        assert "needs 0.weight as it was" in second


@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
@pytest.mark.one_in(3)
def test_a_change_by_data_is_refused_on_every_cut(procs: int, plan: Any, pools: RankPools) -> None:
    for said in pools(procs).call("by_data", plan, "2.weight"):
        assert all("needs 2.weight as it was" in each for each in said), said
    assert pools(procs).call("by_data", plan, "2.bias") == [["", ""]] * procs, "no backward pass reads it"
