"""What meets partitioned tensors from outside is the same on all ranks, or refused on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from given_ranks import CASES
from rank_pool import RankPools

pytestmark = pytest.mark.ranks
PLANS = [(2, {"b": 2}), (2, {"k": 2}), (4, {"h": 2, "k": 2}), (4, {"h": 4})]


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(Path(__file__).with_name("given_ranks.py"), tmp_path_factory.mktemp("ranks")) as pools:
        yield pools


@pytest.mark.parametrize(("procs", "plan"), PLANS, ids=str)
@pytest.mark.one_in(4)
def test_what_differs_is_refused_on_all_ranks(procs: int, plan: Any, pools: RankPools) -> None:
    told = pools(procs).call("outcomes", plan, True)
    assert all(each == told[0] for each in told)
    assert told[0].pop("afterwards") == "right"
    for name, sentence in told[0].items():
        _, what = CASES[name]
        assert f"rank {procs - 1} was given " in sentence, (name, sentence)
        assert f" {what}" in sentence, (name, sentence)
        assert name == "a decay" or " than rank 0 (" in sentence, (name, sentence)
        assert ".py:" in sentence, (name, sentence)


@pytest.mark.parametrize(("procs", "plan"), PLANS, ids=str)
@pytest.mark.one_in(4)
def test_what_is_the_same_is_not(procs: int, plan: Any, pools: RankPools) -> None:
    for told in pools(procs).call("outcomes", plan, False):
        assert told.pop("afterwards") == "right"
        assert set(told.values()) == {"nothing"}, told


def test_a_rank_may_look_at_its_own_part_alone(pools: RankPools) -> None:
    for own, other in pools(4).call("alone", {"h": 2, "k": 2}):
        assert own == "nothing"
        assert "rank 0 was given the number in add (given_ranks.py:" in other
        assert "(to_local() gives the own part)" in other


def test_a_dtype_of_one_rank_alone_is_refused_on_all(pools: RankPools) -> None:
    told = pools(4).call("other_dtype", {"h": 2, "k": 2})
    assert all(each == told[0] for each in told)
    assert "forward pass 1: rank " in told[0]


@pytest.mark.parametrize(("procs", "plan"), PLANS, ids=str)
@pytest.mark.one_in(2)
def test_gradients_of_wholes_are_those_of_one_process(procs: int, plan: Any, pools: RankPools) -> None:
    for found in pools(procs).call("gradients_of_wholes", plan):
        assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize(("procs", "plan"), PLANS[:1], ids=str)
def test_inputs_that_share_changed_words_are_refused(procs: int, plan: Any, pools: RankPools) -> None:
    """One process would change the other input, too."""
    for said, apart in pools(procs).call("shared_memory", plan):
        assert [bool(each) for each in said] == [True, True, False, False, True]
        for each in filter(None, said):
            assert each.startswith("x and y share memory, and forward changes x in place")
        assert apart < 1e-9
