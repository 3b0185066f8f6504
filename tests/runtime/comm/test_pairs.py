"""Two ranks of one host swap piece for piece: the same words, and the same calls on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pair_ranks import pieces
from rank_pool import RankPool

from synth.runtime.comm.pair_memory import SLOT
from synth.runtime.grid.launched_job import usable_cores

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(usable_cores() < 2, reason="two ranks would share a core"),
]
WIDE = ["float32", "float32"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(Path(__file__).with_name("pair_ranks.py"), 2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


@pytest.mark.parametrize(
    ("sizes", "dtypes", "swap"),
    [
        ([[7], [7]], WIDE, True),
        ([[3], [200_000]], WIDE, True),
        ([[3], [600_000]], WIDE, True),  # more than shared memory takes
        ([[5], []], WIDE, True),  # words in one direction
        ([[], [5]], ["bfloat16", "bfloat16"], True),
        ([[4], [4]], ["int16", "int16"], True),
        ([[600_000], [4]], ["int16", "int16"], True),
        ([[2**21], [4]], ["int16", "int16"], True),  # which gloo's all-to-all does not carry
        ([[4], [4]], ["float32", "float64"], False),
        ([[2, 3], [4]], WIDE, False),  # two pieces for one
        ([[], []], WIDE, False),
    ],
)
def test_one_piece_for_one(sizes: list[list[int]], dtypes: list[str], swap: bool, ranks: RankPool) -> None:
    for rank, (came, calls) in enumerate(ranks.call("swapped", sizes, dtypes)):
        expected = pieces(sizes[1 - rank], 1 - rank, dtypes[1 - rank])
        assert came == [piece.tolist() for piece in expected]
        messages = len(sizes[0]) + len(sizes[1])
        assert len(calls) == (1 if swap else messages)
        large = max(map(sum, sizes)) * (2 if "16" in dtypes[0] else 4) > SLOT
        assert (calls == ["all_to_all_single" if large else "swap"]) == swap


@pytest.mark.parametrize("large", [0, 2**30])
@pytest.mark.parametrize("words", [1, 1000])
def test_collectives_of_a_pair_are_swaps(words: int, large: int, ranks: RankPool) -> None:
    """Of small and of large pieces. Both ranks give three times the whole in sum."""
    whole = [i + 100.0 * rank for rank in (0, 1) for i in range(words)]
    for rank, (gathered, sums, calls) in enumerate(ranks.call("collective", words, large)):
        assert gathered == whole
        assert sums == [3 * each for each in whole[rank * words : (rank + 1) * words]]
        assert calls == ["swap"] * 2


def test_ranks_of_two_hosts_are_no_near_pair(ranks: RankPool) -> None:
    assert ranks.call("near", [0, 0]) == [True, True]
    assert ranks.call("near", [0, 1]) == [False, False]
    assert ranks.call("near", [1, 1]) == [True, True]


def test_ranks_that_outnumber_cores_are_no_near_pair(ranks: RankPool) -> None:
    assert ranks.call("near", [0, 0], 1) == [False, False]


def test_a_group_of_another_size_is_no_pair(ranks: RankPool) -> None:
    assert ranks.call("alone") == [False, False]
