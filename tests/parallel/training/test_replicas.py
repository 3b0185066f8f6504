"""Replicas of a network on the rows of a mesh: DDP's semantics around networks on several ranks each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import RankPool, exact, pool_of

pytestmark = pytest.mark.ranks

SLOW = pytest.mark.slow
WORDS = [*((2, word) for word in ("samples", "space", "channels", "mixed", "uneven"))]
WORDS += [(4, "mixed"), (4, "uneven"), (1, "mixed"), (1, "uneven")]
FAST = [*((*each, "SGD") for each in WORDS if each not in ((4, "uneven"), (1, "mixed")))]
FAST += [(2, "space", "AdamW"), (2, "uneven", "AdamW"), (4, "mixed", "AdamW")]
CASES = [
    pytest.param(*each, name, marks=[SLOW] * ((*each, name) not in FAST))
    for each in WORDS
    for name in ("SGD", "AdamW")
]


ranks = pool_of(__file__, "replica_ranks.py", 4)


@pytest.mark.parametrize(("rows", "word", "optimizer"), CASES)
@pytest.mark.one_in(12)
def test_three_steps(rows: int, word: str, optimizer: str, ranks: RankPool) -> None:
    exact(ranks.call("trains", rows, word, optimizer), "output", "loss", "gradient", "state")


@pytest.mark.parametrize("what", ["accumulates", "clips", "gradients", "freezes", "scales"])
@pytest.mark.parametrize("word", ["uneven", pytest.param("space", marks=SLOW)])
@pytest.mark.one_in(8)
def test_around_a_step(what: str, word: str, ranks: RankPool) -> None:
    exact(ranks.call(what, 2, word))


@pytest.mark.parametrize(("rows", "word"), [(2, "channels"), (4, "mixed")])
@pytest.mark.one_in(2)
def test_sizes_of_buckets(rows: int, word: str, ranks: RankPool) -> None:
    exact(ranks.call("buckets", rows, word), "error")


def test_one_replica_sends_what_none_sends(ranks: RankPool) -> None:
    for one, none in ranks.call("messages", "mixed"):
        assert one == none


@pytest.mark.parametrize("word", ["samples", "channels", "mixed", "uneven"])
@pytest.mark.one_in(4)
def test_words_of_sums_are_planned(word: str, ranks: RankPool) -> None:
    """A bias of each rank, a weight where replicas average it: a reduce-scatter and an all-gather of it."""
    for rows in (1, 2):
        for received, planned, sums in ranks.call("words", rows, word):
            assert received == planned
            assert sums > 0


@pytest.mark.slow
def test_a_checkpoint_has_each_word_once_and_loads_elsewhere(ranks: RankPool, tmp_path: Path) -> None:
    saved = ranks.call("saves", str(tmp_path))
    assert all(extra == [0] * len(extra) for _, extra in saved)
    wanted = saved[0][0]
    for rows, word in ((1, "channels"), (4, "mixed"), (2, "samples")):
        for found in ranks.call("loads", str(tmp_path), rows, word):
            same(found, wanted)


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The same keys and words."""
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert np.array_equal(found[key], values), key


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("model", "ValueError: rank 2 has another model than rank 0: module grouped is Conv2d("),
        ("plan", "ValueError: rank 2 has another plan than rank 0: "),
        ("input", "ValueError: rank 2 has another model than rank 0: the input is (8, 3, 8, 8), there"),
        (
            "parameters",
            "RuntimeError: forward pass 2 with 10 trained parameters: rank 2 has other",
        ),
        ("frozen", "RuntimeError: rank 0 is at forward pass 2 with 10 trained parameters (replica_"),
        (
            "forward",
            "RuntimeError: rank 0 is at backward pass of forward pass 2 (replica_ranks.py:*), but rank 2"
            " at forward",
        ),
        (
            "no_sync",
            "RuntimeError: rank 0 is at backward pass of forward pass 2 (replica_ranks.py:*), but rank 2"
            " at backward",
        ),
        (
            "words",
            "RuntimeError: rank 0 is at backward pass of forward pass 2 (replica_ranks.py:*), but rank 2"
            " at forward pass 2, which says: rfloordiv",
        ),
        ("drawn", "RuntimeError: the ranks would draw other words of (8, 3, 3, 3), because"),
        ("check", "RuntimeError: conv.weight has other words on rank "),
        (
            "three dimensions",
            "UsageError: procs is a mesh of 3 dimensions; give one (the ranks of the network) or two"
            ' (replicas, and the ranks of each), such as mesh["b", "c"]',
        ),
    ],
)
@pytest.mark.one_in(2)
def test_what_differs_is_told_to_all(what: str, text: str, ranks: RankPool) -> None:
    told = ranks.call("refused", what, seconds=60)
    assert len(set(told)) == 1, told
    assert re.sub(r"py:\d+", "py:*", told[0]).startswith(text)


@pytest.mark.parametrize("what", ["", "evaluation"])
@pytest.mark.one_in(2)
def test_what_may_differ(what: str, ranks: RankPool) -> None:
    assert ranks.call("refused", what, seconds=60) == [""] * 4


def test_dropout_differs_between_replicas_alone(ranks: RankPool) -> None:
    first, again, other, last = ranks.call("dropped")
    assert first == again
    assert other == last
    assert first != other
    assert set(first[0]) == set(other[0]) == {0.0, 2.0}


def test_replicas_on_some_ranks_and_in_another_order(ranks: RankPool) -> None:
    assert ranks.call("parts_of_a_job") == [[0, 2], [1, 1, 3], [0, 2], [3, 1, 3]]


def test_dtensors_of_a_replica(ranks: RankPool) -> None:
    for equal in ranks.call("as_dtensors", seconds=60):
        assert len(equal) > 5
        assert all(equal)


def test_replicas_are_fed_in_turns(ranks: RankPool, tmp_path: Path) -> None:
    samples = np.arange(9, dtype=np.float32)[:, None, None, None].repeat(4, -1).reshape(9, 1, 2, 2)
    np.save(tmp_path / "samples.npy", samples)
    words = [[16.0 * 2]]  # of each of two batches, a sample
    one, other = [[8.0, 7.0], [4.0, 3.0]], [[6.0, 5.0], [2.0, 1.0]]
    assert ranks.call("fed", str(tmp_path / "samples.npy")) == [one + words] * 2 + [other + words] * 2
