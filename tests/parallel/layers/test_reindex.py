"""Padding, slices, shifts and the like on four real ranks: computed on shards, as in one process."""

from __future__ import annotations

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks
EVEN, UNEVEN = (4, 3, 8, 8), (3, 3, 9, 7)
NAMES = [
    *("causal", "constant", "circular", "replicate", "reflect", "cropped"),
    *("gated", "shifted", "positions", "crop", "no_rows", "larger", "smaller"),
    *("blocks", "means", "halves", "put_together"),
]
BOXES = ["windows", "shuffled", "along", "stacked", "adaptive"]


ranks = pool_of(__file__, "reindex_ranks.py", 4)


def assert_as_one_process(ranks: RankPool, plan: str, shape: tuple[int, ...]) -> None:
    names = [*NAMES, "quarters", *BOXES] if shape == EVEN else [*NAMES, *BOXES[1:]]
    for rank in ranks.call("compared", names, plan, shape):
        assert list(rank) == names
        for name, errors in rank.items():
            assert max(errors.values()) < 1e-8, (name, errors)


@pytest.mark.parametrize("plan", ["space", "mixed"])
@pytest.mark.one_in(2)
def test_calls_on_whole_boxes_are_those_of_one_process(plan: str, ranks: RankPool) -> None:
    """Reshapes, shuffles, functions along a dimension and stacks; nothing is gathered."""
    for rank in ranks.call("compared", BOXES, plan, EVEN):
        assert len(rank) == len(BOXES)
        for name, errors in rank.items():
            assert max(errors.values()) < 1e-8, (name, errors)


@pytest.mark.parametrize("plan", ["space", "mixed", "free"])
@pytest.mark.one_in(3)
def test_moved_rows_are_those_of_one_process(plan: str, ranks: RankPool) -> None:
    """Forward and two training steps; nothing is gathered."""
    for rank in ranks.call("compared", NAMES, plan, UNEVEN):
        assert list(rank) == NAMES
        for name, errors in rank.items():
            assert max(errors.values()) < 1e-8, (name, errors)


def assert_padded(ranks: RankPool, plan: str) -> None:
    for rank in ranks.call("padded", plan):
        assert len(rank) == 4
        for name, errors in rank.items():
            assert max(errors.values()) < 1e-8, (name, errors)


@pytest.mark.parametrize("plan", ["space", "mixed", "free"])
@pytest.mark.one_in(3)
def test_convolutions_with_any_padding_are_those_of_one_process(plan: str, ranks: RankPool) -> None:
    """Causal, `same`, circular, reflected and replicated; forward and two training steps."""
    assert_padded(ranks, plan)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["samples", "channels", "filters", "frames"])
def test_convolutions_with_any_padding_on_every_plan(plan: str, ranks: RankPool) -> None:
    assert_padded(ranks, plan)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [EVEN, UNEVEN])
@pytest.mark.parametrize("plan", ["samples", "space", "channels", "filters", "mixed", "free"])
def test_moved_rows_with_every_plan(plan: str, shape: tuple[int, ...], ranks: RankPool) -> None:
    assert_as_one_process(ranks, plan, shape)


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        pytest.param("h", (2, 3, 8, 8), marks=pytest.mark.slow),
        pytest.param("hw", EVEN, marks=pytest.mark.slow),
        ("bhk", UNEVEN),
    ],
)
@pytest.mark.slow
def test_words_of_moved_rows_are_those_of_the_plan(
    axes: str, shape: tuple[int, ...], ranks: RankPool
) -> None:
    """Of every reindexing, sum and layer: the most of any rank there, and the most of any back."""
    unknown = {"positions", "halves", "put_together"}  # a select, a mean and joined channels have no layout
    unknown |= {"no_rows"}  # whose edges have the names of other parts
    names = [name for name in NAMES if name not in unknown]
    results = ranks.call("words", names, axes, shape)
    moved = dict[str, int]()
    for name in names:
        planned = {what: count for what, count in results[0][name]["planned"].items() if count}
        counted: dict[str, int] = {}
        for way in ("there", "back"):
            every = [rank[name][way] for rank in results]
            for what in {what for each in every for what in each}:
                counted[what] = counted.get(what, 0) + max(each.get(what, 0) for each in every)
        unplanned = {"first", "norm"}  # the batch's own layout, and sums of a normalization
        assert {k: v for k, v in counted.items() if v and k not in unplanned} == planned, name
        moved |= planned
    assert sum(moved.values()) > 1000
    assert axes != "bhk" or "pixel_shuffle" in moved  # of channels that are cut within a row of the result
    assert axes == "bhk" or {"roll", "roll_1"} <= set(moved)  # rows, not only between layers
