"""Input of networks on four ranks: files with labels, and torch's loaders and samplers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "input_ranks.py", 4)


@pytest.mark.parametrize("plan", ["mixed", "space"])
@pytest.mark.one_in(2)
def test_a_file_with_masks_is_shuffled_as_in_one_process(ranks: RankPool, tmp_path: Path, plan: str) -> None:
    for found in ranks.call("files", str(tmp_path), plan):
        assert found["error"] < 1e-12
        assert found["sizes"] == [4, 4, 4, 2] * 2
        assert found["length"] == 4
        assert found["read"] == 8 * found["words"]  # float64 and int64: the own boxes alone


@pytest.mark.parametrize(("plan", "workers", "own"), [("mixed", 0, 7), ("space", 2, 0), ("samples", 0, 4)])
@pytest.mark.one_in(2)
def test_a_loader_gives_ranks_the_same_random_samples(
    ranks: RankPool, plan: str, workers: int, own: int
) -> None:
    for found in ranks.call("loader", plan, workers):
        assert found["spread"] < 1e-12, "parts of a sample were scaled by other numbers"
        assert found["different"] == 14
        assert found["classes"]
        assert found["error"] < 1e-12
        assert found["loaded"] == (0 if workers else own), "workers count for themselves"
        assert found["drawn"], "a loader draws the seeds of its workers from torch's generator"


def test_a_loader_reads_boxes_of_arrays(ranks: RankPool, tmp_path: Path) -> None:
    batches, own = 2 * 3, 2 * 2 * 4 * 6
    assert ranks.call("boxes", str(tmp_path)) == [8 * batches * own] * 4


def test_wrong_uses_are_refused_in_a_sentence(ranks: RankPool) -> None:
    expected = [
        r"sharded: the sampler gives rank 0 share 0 of 4, but the ranks \[0, 1, 2, 3\] compute each sample",
        r"order: the sampler gives rank 0 share 0 of 4",
        r"shuffled: Images: rank 1 has another order of samples than rank 0",
        r"drawn: Images: rank 1 has loaded sample 0 with other values than rank 0",
        r"stream: Stream is an IterableDataset",
        r"small: the DataLoader makes batches of 2 samples, but the network is planned for 4",
        r"alone: the DataLoader makes no batches",
        r"twice: a DataLoader brings its own order",
        r"few labels: array of \(3, 8, 6\): 3 labels for 14 samples",
    ]
    told = ranks.call("wrong_uses")
    assert len(told[0]) == len(expected)
    for sentence, start in zip(told[0], expected, strict=True):
        assert re.match(start, sentence), sentence


def test_replicas_are_given_other_samples(ranks: RankPool) -> None:
    told = ranks.call("replicas")
    assert told[0] == told[1]
    assert told[2] == told[3]
    (first, turns, rest), (second, others, more) = told[0], told[2]
    assert sorted({*first, *second}) == list(range(14))
    assert not set(first) & set(second)
    assert turns == [0, 1, 2, 3]
    assert others == [4, 5, 6, 7]
    assert rest == [0, 1, 2, 3, 8, 9, 10]
    assert more == [4, 5, 6, 7, 11, 12, 13]
