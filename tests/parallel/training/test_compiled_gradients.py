"""What a loss does not reach gets no gradient from compiled steps, as in torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compiled_gradients_ranks
import pytest
from rank_pool import RankPool

pytestmark = pytest.mark.ranks
HERE = Path(__file__)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    folder = tmp_path_factory.mktemp("ranks")
    with RankPool(HERE.with_name("compiled_gradients_ranks.py"), request.param, folder) as pool:
        yield pool


def require_equal(results: list[dict[str, Any]]) -> None:
    for found in results:
        assert not found["wrong"], found["wrong"]
        assert found["far"] < 1e-8, found["far"]


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("loss", compiled_gradients_ranks.LOSSES)
@pytest.mark.one_in(12)
def test_what_losses_reach(empty: bool, loss: str, ranks: RankPool) -> None:
    require_equal(ranks.call("reached", empty, loss))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.slow
def test_hooks_and_networks_before_others(inside: bool, ranks: RankPool) -> None:
    require_equal(ranks.call("upstream", inside))


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["partitioned", "whole"])
def test_losses_in_turn(outputs: str, ranks: RankPool) -> None:
    require_equal(ranks.call("in_turn", outputs))
