"""Ranks of one host send words through shared slots: the words of messages, and none waits for ever."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, pool_of

from synth.runtime.comm.host_memory import SLOT, SLOTS

pytestmark = pytest.mark.ranks
FULL = SLOT // 4  # words of float32 in a slot


ranks = pool_of(__file__, "host_memory_ranks.py", 4)


def members(results: list[Any], number: int) -> list[Any]:
    """The results of the members of a group of the first ranks."""
    assert len(results) == 4
    return results[:number]


def alike(words: int, ranks: int = 2) -> list[list[int]]:
    """As many words from each rank to each."""
    return [[words] * ranks] * ranks


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "bfloat16", "float16", "int64", "int16", "uint8", "bool", "complex64"],
)
def test_dtypes(dtype: str, ranks: RankPool) -> None:
    rounds = [alike(7), [[0, 1], [9, 0]], [[0, 4], [0, 0]], [[0, 0], [3, 0]]]
    found = ranks.call("exchanged", 2, rounds, dtype, [0, 1, 2, 3])
    assert members(found, 2) == [(True, [], 0)] * 2


@pytest.mark.parametrize(
    ("rounds", "order"),
    [
        ([alike(FULL)], [0]),
        ([alike(FULL + 1)], [0]),  # in two pieces
        ([[[0, 1], [FULL * (2 * SLOTS + 1), 0]]], [0]),  # more than all slots take
        ([alike(FULL * (SLOTS + 2))], [0]),
        ([alike(3), alike(FULL), alike(2 * FULL + 5)], [2, 0, 1]),
        ([alike(3)] * (3 * SLOTS), list(range(3 * SLOTS))),
        ([alike(3)] * (3 * SLOTS), list(range(3 * SLOTS))[::-1]),
        ([[[0, 4], [0, 0]]] * (2 * SLOTS), list(range(2 * SLOTS))),  # in one direction
    ],
)
def test_messages_of_a_pair_are_awaited_in_any_order(
    rounds: list[list[list[int]]], order: list[int], ranks: RankPool
) -> None:
    found = ranks.call("exchanged", 2, rounds, "float32", order)
    assert members(found, 2) == [(True, [], 0)] * 2


@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize(
    ("words", "rounds"), [(5, 1), (5, 3 * SLOTS), (FULL + 3, SLOTS), (FULL * (SLOTS + 1), 2)]
)
@pytest.mark.one_in(3)
def test_all_ranks_send_to_all(number: int, words: int, rounds: int, ranks: RankPool) -> None:
    """Rank r sends r + s words more to rank s."""
    sizes = [[[words + r + s for s in range(number)] for r in range(number)]] * rounds
    found = ranks.call("exchanged", number, sizes, "float32", list(range(rounds)))
    assert members(found, number) == [(True, [], 0)] * number


def test_a_ring_with_much_under_way(ranks: RankPool) -> None:
    """Each rank waits for one that waits for the next, and no slot is free."""
    ring = [[3 * FULL if s == (r + 1) % 4 else 0 for s in range(4)] for r in range(4)]
    back = [[ring[s][r] for s in range(4)] for r in range(4)]
    found = ranks.call("exchanged", 4, [ring, back] * SLOTS, "float32", list(range(2 * SLOTS)))
    assert found == [(True, [], 0)] * 4


@pytest.mark.parametrize("numbers", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 2, 3], [5, 5, 5, 5]])
def test_ranks_of_several_hosts(numbers: list[int], ranks: RankPool) -> None:
    """Those of one host share memory; messages to others go over gloo, and collectives of all."""
    found = ranks.call("several_hosts", numbers)
    for me, (shared, whole, words, rows, calls) in enumerate(found):
        near = [at for at in range(4) if at != me and numbers[at] == numbers[me]]
        assert shared == near
        assert whole == (len(near) == 3)
        assert words == [10.0 * at for at in range(4) if at != me]
        assert rows == [me + 10.0 * at for at in range(4)]
        far = 3 - len(near)
        assert sorted(calls) == ["all_to_all_single"] * (far > 0) + ["irecv"] * far + ["isend"] * far


@pytest.mark.parametrize("cores", [1, 3, 4])
def test_ranks_that_outnumber_cores_leave_them_to_others(cores: int, ranks: RankPool) -> None:
    assert ranks.call("crowded", cores) == [[cores == 4] * 3] * 4


def test_a_group_of_many_ranks_shares_nothing(ranks: RankPool) -> None:
    """Each would open a socket for each other one."""
    assert ranks.call("large_group") == [(False, ["all_to_all_single"])] * 4


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("number", [2, 3])
def test_a_rank_keeps_what_it_sends_itself(number: int, even: bool, ranks: RankPool) -> None:
    for rank, found in enumerate(members(ranks.call("with_own_words", number, 3, even), number)):
        own = [3 * rank + i for i in range(3)]
        assert found == [i + 100.0 * sender for sender in range(number) for i in own]


@pytest.mark.parametrize("large", [0, 2**30])
@pytest.mark.parametrize(("number", "words"), [(2, 6), (2, 1001), (3, 9), (4, 4002), (4, 3)])
def test_collectives_of_panels(number: int, words: int, large: int, ranks: RankPool) -> None:
    """Of small and of large pieces, which may be uneven or empty. Rank r gives r + 1 times the panel."""
    found = members(ranks.call("panels", number, words, large), number)
    whole = [float(i) for i in range(words)]
    sums = [each for _, own, _ in found for each in own]
    assert [panel for panel, _, _ in found] == [whole] * number
    assert sums == [number * (number + 1) / 2 * each for each in whole]
    assert [calls for _, _, calls in found] == [[]] * number


@pytest.mark.parametrize("words", [1, FULL * (SLOTS + 1)])
@pytest.mark.parametrize(("number", "source"), [(2, 1), (4, 0), (4, 2)])
@pytest.mark.one_in(3)
def test_words_of_one_rank(number: int, source: int, words: int, ranks: RankPool) -> None:
    for own, calls in members(ranks.call("from_one", number, source, words), number):
        assert (own[0], own[-1], calls) == (100.0 * source, 100.0 * source + words - 1, [])


def test_bytes_are_counted_by_the_benchmarks(ranks: RankPool) -> None:
    assert members(ranks.call("counted", (1000, 30)), 2) == [(4000, 120), (120, 4000)]


def test_messages_for_which_nobody_waits(ranks: RankPool) -> None:
    assert ranks.call("forgotten", 3 * SLOTS) == [(0, True)] * 4


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16"])
@pytest.mark.parametrize("words", [1, 1001])
def test_sums_of_two_have_the_bits_of_an_all_reduce(words: int, dtype: str, ranks: RankPool) -> None:
    for own, theirs, calls in members(ranks.call("sums", 2, words, dtype), 2):
        assert own == theirs
        assert not calls


@pytest.mark.parametrize("dtype", ["float64", "int64", "float32", "bfloat16"])
@pytest.mark.parametrize("number", [3, 4])
def test_sums_have_the_same_bits_on_all_ranks(number: int, dtype: str, ranks: RankPool) -> None:
    found = members(ranks.call("sums", number, 1001, dtype), number)
    for own, theirs, calls in found:
        assert own == found[0][0]
        close = {"bfloat16": 0.02, "float32": 1e-5}.get(dtype, 1e-12)
        assert own == pytest.approx(theirs, rel=close, abs=16 * close)
        assert not calls


def test_large_sums_are_those_of_torch(ranks: RankPool) -> None:
    for own, theirs, calls in ranks.call("sums", 4, FULL, "float32"):
        assert own == theirs
        assert calls == ["all_reduce"]


def test_other_reductions_are_messages(ranks: RankPool) -> None:
    assert members(ranks.call("greatest"), 2) == [(1.0, ["all_reduce"])] * 2


def test_a_piece_of_another_size_is_refused(ranks: RankPool) -> None:
    first, second, *_ = ranks.call("other_sizes")
    assert "rank 1 sent 16 bytes where 12 are expected" in first
    assert second == ""


def test_a_rank_that_sends_nothing(ranks: RankPool) -> None:
    first, *_ = ranks.call("late", 0.2, False)
    assert first == "rank 1 has not sent its words for 0.2 s, the timeout of the process group"


def test_a_rank_that_reads_nothing(ranks: RankPool) -> None:
    first, *_ = ranks.call("late", 0.2, True)
    assert first == "rank 1 has not read what it got for 0.2 s, the timeout of the process group"


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("sizes", [[3] * 300, [5, FULL + 3, 2 * FULL, 1] * 5, [FULL * (SLOTS + 1), 7] * 3])
def test_threads_have_groups_of_their_own(threads: int, sizes: list[int], ranks: RankPool) -> None:
    found = ranks.call("in_threads", threads, sizes, seconds=60)
    assert [right for right, _ in members(found, 2)] == [True] * 2


def test_a_thread_that_waits_keeps_no_other_waiting(ranks: RankPool) -> None:
    assert members(ranks.call("beside", 20.0, seconds=60), 3) == [[3.0, 7.0], [0.0, 0.0], [0.0, 5.0]]


def test_a_forked_child_sends_and_reads_nothing(ranks: RankPool) -> None:
    for rank, (said, right) in enumerate(members(ranks.call("forked", 200, seconds=60), 2)):
        assert right
        assert len(said) == 6
        for each in said:
            assert each.startswith(f"this process was forked from rank {rank} after a network was made")


def test_a_rank_that_ends_before_its_child_is_seen(ranks: RankPool) -> None:
    first, *_ = ranks.call("gone_before_its_child", seconds=60)
    assert first == "Connection closed by peer, rank 1"


@pytest.mark.parametrize("seconds", [2e8, 1e300, float("inf")])
def test_a_wait_may_be_longer_than_the_system_counts(seconds: float, ranks: RankPool) -> None:
    assert members(ranks.call("patient", seconds), 2) == [1.0, 0.0]


def test_no_signal_ends_a_rank_whose_peer_has_ended(ranks: RankPool) -> None:
    assert ranks.call("outlived") == [True] * 4


@pytest.mark.parametrize("before", [True, False])
def test_a_rank_that_ends_is_seen_at_once(before: bool, ranks: RankPool) -> None:
    assert ranks.call("gone", before)[0] == "Connection closed by peer, rank 1"


def test_words_of_a_rank_that_has_ended_come(ranks: RankPool) -> None:
    assert ranks.call("last_words") == [3.0] * 4


@pytest.mark.parametrize("kind", ["guess", "short", "none"])
def test_a_stranger_at_the_socket_is_turned_away(kind: str, ranks: RankPool) -> None:
    assert ranks.call("stranger", kind) == [True] * 4


@pytest.mark.parametrize(
    ("name", "rank", "left"),
    [
        ("_listening", 0, [[], [2], [1]]),
        ("_joined", 2, [[1], [0], []]),
        ("_accepted", 0, [[], [2], [1]]),
        ("_given", 1, [[1, 2], [0], [0]]),
        ("socket", 2, [[1], [0], []]),  # too many files are open
        ("memfd_create", 1, [[1, 2], [0], [0]]),  # nobody waits for it
        ("_got", 1, [[2], [2], [0, 1]]),
    ],
)
def test_the_others_share_memory_where_one_cannot(
    name: str, rank: int, left: list[list[int]], ranks: RankPool
) -> None:
    for me, (links, words) in enumerate(members(ranks.call("unable", name, rank, seconds=30), 3)):
        assert links == left[me]
        assert words == [me + 10.0 * at for at in range(3)]


def test_no_file_is_left_open(ranks: RankPool) -> None:
    assert ranks.call("handles") == [(6, 0)] * 4  # a socket and memory for each other rank


@pytest.mark.parametrize("rounds", [1, SLOTS, 5 * SLOTS])
def test_groups_of_the_same_ranks_in_other_orders(rounds: int, ranks: RankPool) -> None:
    """Each group has its order of messages; the pieces of one do not keep back those of another."""
    assert members(ranks.call("interleaved", rounds), 2) == [(True, [], 0)] * 2


def test_ranks_that_have_met_meet_others(ranks: RankPool) -> None:
    found = ranks.call("later_pairs")
    assert found == [([at for at in range(4) if at != me], True) for me in range(4)]


@pytest.mark.parametrize(
    ("numbers", "most"),
    [([0, 0, 1, 1], 2), ([1, 0, 1, 0], 2), ([0, 1, 1, 1], 3), ([0, 0, 0, 1], 2), ([3] * 4, 3)],
)
def test_a_job_of_many_ranks_shares_memory_on_each_host(
    numbers: list[int], most: int, ranks: RankPool
) -> None:
    """If a host has few: each opens a socket for each other one."""
    for me, (shared, whole, words, calls, left) in enumerate(ranks.call("many_ranks", numbers, most)):
        near = [at for at in range(4) if at != me and numbers[at] == numbers[me]]
        assert shared == (near if len(near) < most else [])
        assert not whole
        assert words == [10.0 * at for at in range(4) if at != me]
        assert len(calls) == 2 * (3 - len(shared))
        assert not left


@pytest.mark.parametrize("shared", [True, False])
def test_tensors_that_lie_in_another_order_on_another_rank(shared: bool, ranks: RankPool) -> None:
    """gloo sends memory in its order."""
    first, other = [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], 10.0
    expected = {
        "SUM": [[each + other for each in row] for row in first],
        "MAX": [[other] * 2] * 3,
        **dict.fromkeys(("send", "broadcast", "gather", "message"), first),
    }
    for found in members(ranks.call("orders", shared), 2):
        assert found == {name: expected[name] for name in found}
        assert len(found) >= 5
