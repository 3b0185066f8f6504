"""Compiled steps drop what the steps as they are drop, forward and backward, in each pass anew."""

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
    with RankPool(HERE.with_name("compiled_dropout_ranks.py"), request.param, folder) as pool:
        yield pool


def require_same(found: dict[str, Any]) -> None:
    assert not found["wrong"], found["wrong"]
    assert found["far"] < 1e-12, found


@pytest.mark.slow
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.one_in(4)
def test_steps_with_dropout(empty: bool, backend: str, ranks: RankPool) -> None:
    for found in ranks.call("steps", empty, backend):
        require_same(found)
        assert found["passes"] == 1


@pytest.mark.slow
def test_masks_of_passes(ranks: RankPool) -> None:
    for found in ranks.call("in_turn"):
        require_same(found)
        assert found["again"]
        assert found["more"] == 1


@pytest.mark.slow
def test_masks_of_replicas(ranks: RankPool) -> None:
    for found in ranks.call("in_replicas"):
        require_same(found)


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_users_around_compiled_networks(reentrant: bool, ranks: RankPool) -> None:
    for found in ranks.call("in_checkpoints", reentrant):
        require_same(found)
