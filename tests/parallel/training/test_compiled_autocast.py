"""Compiled steps under autocast are those of the network as it is, within rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool

pytestmark = pytest.mark.ranks
HERE = Path(__file__)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    folder = tmp_path_factory.mktemp("ranks")
    with RankPool(HERE.with_name("compiled_autocast_ranks.py"), request.param, folder) as pool:
        yield pool


def require_near(found: dict[str, Any]) -> None:
    assert not found["wrong"], found["wrong"]
    assert found["eager"] < 2e-3, found
    assert found["alone"] < 2e-2, found


@pytest.mark.slow
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.one_in(2)
def test_steps_under_autocast(empty: bool, ranks: RankPool) -> None:
    for found in ranks.call("steps", empty):
        require_near(found)
        assert found["passes"] == 1


@pytest.mark.slow
def test_autocast_that_comes_and_goes(ranks: RankPool) -> None:
    for found in ranks.call("in_turn"):
        require_near(found)


@pytest.mark.slow
def test_autocast_on_one_rank_is_refused(ranks: RankPool) -> None:
    for said in ranks.call("on_one_rank"):
        assert "autocast" in said, said


@pytest.mark.slow
def test_one_operator_under_autocast(ranks: RankPool) -> None:
    for found in ranks.call("around"):
        require_near(found)
        assert "call the network once under it" in found["said"]
