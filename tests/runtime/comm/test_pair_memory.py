"""Two ranks of one host swap words through shared slots: the words of messages, and none waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool

from synth.runtime.comm.pair_memory import SLOT, SLOTS
from synth.runtime.grid.launched_job import usable_cores

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(usable_cores() < 2, reason="two ranks would share a core"),
]
MANY = [(3, 5)] * (SLOTS + 2)
FULL = (SLOT // 4, SLOT // 4)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    script = Path(__file__).with_name("pair_memory_ranks.py")
    with RankPool(script, 2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "bfloat16", "float16", "int64", "int16", "uint8", "bool", "complex64"],
)
def test_dtypes(dtype: str, ranks: RankPool) -> None:
    assert ranks.call("swaps", [(7, 7), (1, 9), (4, 0), (0, 3)], dtype, [0, 1, 2, 3]) == [(True, 4, 0)] * 2


@pytest.mark.parametrize(
    ("sizes", "order", "through"),
    [
        ([FULL], [0], 1),
        ([(SLOT // 4 + 1, 1)], [0], 0),  # one of the pieces is larger than a slot: a message
        ([(1, 2), FULL, (3, 4)], [2, 0, 1], 3),
        ([(4, 0)] * 3, [2, 1, 0], 3),  # in one direction
        (MANY, list(range(len(MANY))), SLOTS),  # no slot is left for two: messages
        (MANY, list(range(len(MANY)))[::-1], SLOTS),
    ],
)
def test_swaps_are_awaited_in_any_order(
    sizes: list[tuple[int, int]], order: list[int], through: int, ranks: RankPool
) -> None:
    assert ranks.call("swaps", sizes, "float32", order) == [(True, through, 0)] * 2


@pytest.mark.parametrize("cores", [1, 2])
def test_ranks_that_outnumber_cores_leave_them_to_others(cores: int, ranks: RankPool) -> None:
    assert ranks.call("crowded", cores) == [(True, cores == 2, 119.0), (True, cores == 2, 19.0)]


@pytest.mark.parametrize("even", [True, False])
def test_a_rank_keeps_what_it_sends_itself(even: bool, ranks: RankPool) -> None:
    for rank, found in enumerate(ranks.call("with_own_words", 3, even)):
        own = [3 * rank + i for i in range(3)]
        assert found == [i + 100.0 * sender for sender in (0, 1) for i in own]


def test_bytes_are_counted_by_the_benchmarks(ranks: RankPool) -> None:
    assert ranks.call("counted", (1000, 30)) == [(4000, 120), (120, 4000)]


def test_swaps_for_which_nobody_waits(ranks: RankPool) -> None:
    assert ranks.call("forgotten", 3 * SLOTS) == [(0, 0, True)] * 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16"])
@pytest.mark.parametrize("words", [1, 1001])
def test_sums_have_the_bits_of_an_all_reduce(words: int, dtype: str, ranks: RankPool) -> None:
    assert ranks.call("sums", words, dtype) == [(True, 1)] * 2


def test_other_reductions_are_messages(ranks: RankPool) -> None:
    assert ranks.call("greatest") == [(1.0, 0)] * 2


def test_a_piece_of_another_size_is_refused(ranks: RankPool) -> None:
    first, second = ranks.call("other_sizes")
    assert "rank 1 sent 16 bytes where 12 are expected" in first
    assert second == ""


def test_a_rank_that_sends_nothing(ranks: RankPool) -> None:
    first, _ = ranks.call("silent", 0.2)
    assert first == "rank 1 has not sent its words for 0.2 s, the timeout of the process group"


@pytest.mark.parametrize("before", [True, False])
def test_a_rank_that_ends_is_seen_at_once(before: bool, ranks: RankPool) -> None:
    assert ranks.call("gone", before)[0] == "Connection closed by peer, rank 1"


@pytest.mark.parametrize("knows", [True, False])
def test_a_stranger_at_the_socket_is_turned_away(knows: bool, ranks: RankPool) -> None:
    """One that sends a secret of the right length, and one that sends less."""
    assert ranks.call("stranger", knows) == [True, True]


@pytest.mark.parametrize(
    ("name", "rank"), [("_listening", 0), ("_joined", 1), ("_accepted", 0), ("_given", 0), ("_got", 1)]
)
def test_both_send_messages_where_one_cannot_share_memory(name: str, rank: int, ranks: RankPool) -> None:
    for me, (none, words) in enumerate(ranks.call("unable", name, rank)):
        assert none
        assert words == [me, 10.0 + me]


def test_no_file_is_left_open(ranks: RankPool) -> None:
    assert ranks.call("handles") == [(2, 0), (2, 0)]  # its socket and its memory
