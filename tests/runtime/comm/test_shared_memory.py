"""Sums over ranks of one host in memory that they share: the values of messages, and no file is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_pool import RankPool
from shared_memory_ranks import WORDS

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="files in memory are Linux's"),
]
RANKS = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(
        Path(__file__).with_name("shared_memory_ranks.py"), RANKS, tmp_path_factory.mktemp("ranks")
    ) as pool:
        yield pool


@pytest.mark.parametrize(
    ("taken", "dtype"), [([], "float32"), ([1], "float64"), ([0, 1, 2], "float32"), ([], "complex64")]
)
def test_sums(taken: list[int], dtype: str, ranks: RankPool) -> None:
    """Where gradients of one rank still lie in its memory, all send messages."""
    every = ranks.call("sums", taken, dtype)
    for found, _ in every:
        for round_, values in enumerate(found):
            first = RANKS * (torch.arange(6) + round_) + sum(range(RANKS))
            second = torch.arange(5) * sum(10**rank for rank in range(RANKS))
            assert len(values) == WORDS
            assert values == torch.cat([first, second]).tolist()
    assert not any(left for _, left in every)


def test_bytes_are_those_of_a_reduce_scatter_and_an_all_gather(ranks: RankPool) -> None:
    """Each rank reads the others' terms of its share, then their shares; as many are read from it."""
    for sent, received, own in ranks.call("moved", WORDS):
        assert sent == received == (RANKS - 1) * own + (4 * WORDS - own)


def test_ranks_of_several_hosts_send_messages(ranks: RankPool) -> None:
    assert ranks.call("sums", [], "float32", True) == [None] * RANKS


def test_no_rank_shares_memory_where_one_has_no_room(ranks: RankPool) -> None:
    assert ranks.call("no_room") == [True] * RANKS


def test_training_takes_the_same_steps(ranks: RankPool) -> None:
    """Also with gradients that are clipped in place, and that stay in the memory for another step."""
    for error, buckets in ranks.call("trained", True):
        assert error < 1e-6
        assert buckets
    assert {buckets for _, buckets in ranks.call("trained", False)} == {0}
