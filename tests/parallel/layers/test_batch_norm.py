"""Local statistics of batch normalizations on four real ranks are DDP's; planned words are counted words."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, exact, pool_of

pytestmark = pytest.mark.ranks

QUARTERS, HALVES, ALL = [(0, 2), (2, 4), (4, 6), (6, 8)], [(0, 4), (4, 8)], [(0, 8)]
UNEVEN = [(0, 3), (3, 5)]
GROUPS: dict[str, dict[str, Any]] = {
    "samples": {"norm": QUARTERS, "again": QUARTERS, "bare": QUARTERS, "last": QUARTERS},
    "samples and rows": {"norm": HALVES, "again": HALVES, "bare": HALVES},
    "samples and filters": {"norm": HALVES, "again": HALVES, "bare": HALVES, "last": HALVES},
    "other per layer": {"norm": QUARTERS, "again": ALL, "bare": QUARTERS},
    "uneven": {"norm": UNEVEN, "again": UNEVEN, "bare": UNEVEN, "last": [(0, 5)]},
    "free": {},
}
FREE = pytest.param("free", marks=pytest.mark.slow)


ranks = pool_of(__file__, "batch_norm_ranks.py", 4)


@pytest.mark.parametrize("word", [*(each for each in GROUPS if each != "free"), FREE])
@pytest.mark.one_in(6)
def test_groups_of_samples_are_normalized_apart(word: str, ranks: RankPool) -> None:
    found = ranks.call("train", word)
    groups = [each.pop("groups") for each in found]
    assert groups == groups[:1] * 4
    assert groups[0] == groups[0] | GROUPS[word]
    exact(found, "forward", "gradients", "state", "running statistics", "evaluation")


@pytest.mark.parametrize("layout", ["samples", "channels", "overlapping", "idle"])
def test_a_layer_in_any_layout(layout: str, ranks: RankPool) -> None:
    exact(ranks.call("layer", layout))


def test_replicas(ranks: RankPool) -> None:
    """Two replicas of two ranks; running statistics are those of the first samples of replica 0."""
    found = ranks.call("train", "two ranks", 2)
    assert found[0].pop("groups")["norm"] == [(0, 2), (2, 4)]
    for each in found[1:]:
        del each["groups"]
    exact(found, "forward", "gradients", "running statistics")


@pytest.mark.slow
def test_a_plan_of_samples_is_ddp(ranks: RankPool) -> None:
    exact(ranks.call("ddp"), "forward", "gradients", "state")


def test_a_smaller_last_batch(ranks: RankPool) -> None:
    exact(ranks.call("other_batches"), "forward", "running statistics", "evaluation")


@pytest.mark.parametrize("statistics", ["global", "local"])
@pytest.mark.parametrize("axes", ["b", "", "h", "k"])
@pytest.mark.one_in(6)
def test_planned_words_are_counted(axes: str, statistics: str, ranks: RankPool) -> None:
    counted, planned = zip(*ranks.call("words", axes, statistics), strict=True)
    assert max(counted) == planned[0]
    assert (planned[0] == 0) == (axes != "h" and statistics == "local")  # else samples alone are cut


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("word", "UsageError: batch_norm is 'none'; it must be global (statistics of the whole batch)"),
        ("inference", "UsageError: batch_norm='local' is of training, since inference takes running"),
        ("rank", "ValueError: rank 1 has another options than rank 0: batch_norm is local"),
        ("frames", 'ValueError: norm: batch_norm="local" divides the samples of the batch (2), but dim'),
        ("gathered", 'ValueError: 1: batch_norm="local" has no meaning for running statistics of the'),
        ("one", "ValueError: one value per channel of some ranks' samples, of (5, "),
    ],
)
def test_what_has_no_meaning_is_refused(what: str, text: str, ranks: RankPool) -> None:
    for told in ranks.call("refused", what, seconds=60):
        assert told.startswith(text), told
