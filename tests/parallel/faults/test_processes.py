"""Threads that train networks of their own, and children that are forked from ranks."""

from __future__ import annotations

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks
FORKED = "this process was forked from rank {} after a network was made"


ranks = pool_of(__file__, "process_ranks.py", 2)


@pytest.mark.parametrize("number", [2, 3])
def test_networks_are_trained_by_threads(number: int, ranks: RankPool) -> None:
    for losses, expected, apart in ranks.call("in_threads", number, 20, seconds=60):
        assert losses == [pytest.approx(each, rel=1e-10) for each in expected]
        assert apart < 1e-10


def test_a_forked_child_does_not_disturb_its_rank(ranks: RankPool) -> None:
    for rank, (said, apart) in enumerate(ranks.call("with_children", 30, seconds=60)):
        assert apart < 1e-10
        for each in said:
            assert each.startswith(f"RuntimeError: {FORKED.format(rank)}"), said


def test_a_network_in_a_worker_of_a_loader_is_refused(ranks: RankPool) -> None:
    for rank, (said, apart) in enumerate(ranks.call("with_workers", seconds=60)):
        assert FORKED.format(rank) in said
        assert "use the network in the rank itself" in said
        assert apart < 1e-10


def test_a_child_may_use_a_network_of_one_process(ranks: RankPool) -> None:
    assert ranks.call("alone_in_child", seconds=60) == ["nothing"] * 2
