"""Modes, contexts and defaults of the user's around `parallelize`, and batches without samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool
from surrounding_ranks import CONTEXTS

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    folder = tmp_path_factory.mktemp("ranks")
    fresh = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with RankPool(Path(__file__).with_name("surrounding_ranks.py"), 2, folder, fresh) as pool:
        yield pool


@pytest.mark.slow
def test_the_first_network_of_a_machine_may_be_of_float64(ranks: RankPool) -> None:
    assert max(ranks.call("first_in_float64")) < 1e-10


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.one_in(2)
def test_a_network_may_be_made_inside(name: str, mode: str, ranks: RankPool) -> None:
    assert max(ranks.call("made_inside", name, mode)) < 1e-10


def test_an_empty_batch_is_refused_in_one_sentence(ranks: RankPool) -> None:
    for said in ranks.call("empty"):
        *refusals, four, three, one = said
        for each in refusals:
            assert "(0, 3, 8, 8)" in each
            assert "has no words, so there is nothing to compute; leave an empty batch out" in each
        assert (four, three, one) == ("right", "right", "right")
