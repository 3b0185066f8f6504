"""Batches of other shapes than planned, on four real ranks: as in one process, with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "shape_ranks.py", 4)


@pytest.mark.parametrize("plan", [None, "data", "spatial", {"k": 2, "h": 2}], ids=str)
@pytest.mark.one_in(4)
def test_steps_on_several_shapes(plan: Any, ranks: RankPool) -> None:
    for found in ranks.call("trained", plan, 8):
        assert found["error"] < 1e-10
        assert found["kept"] == 4
        assert found["received"]


def test_few_graphs_are_kept(ranks: RankPool) -> None:
    for found in ranks.call("trained", None, 2):
        assert found["error"] < 1e-10
        assert found["kept"] == 2


def test_copies_evaluation_frozen_layers_and_own_parts(ranks: RankPool) -> None:
    for found in ranks.call("used"):
        assert found["error"] < 1e-10
        assert found["frozen"]


def test_gradients_add_up_over_shapes(ranks: RankPool) -> None:
    for found in ranks.call("accumulated"):
        assert found["error"] < 1e-10
        assert (
            "gradients of batches of another shape, or of another call, wait for their sum"
            in found["refused"]
        )


def test_gradients_of_inputs_of_another_shape(ranks: RankPool) -> None:
    """The first plan makes them unasked, that of the other shape does not."""
    for unasked, error in ranks.call("of_inputs"):
        assert unasked
        assert error < 1e-10


def test_shapes_without_a_plan_are_refused(ranks: RankPool) -> None:
    said = [
        "the plan that was given is not for the input (5, 3, 16, 16); parallelize without a plan",
        "Sequential has no graph for an input of (5, 4, 16, 16)",
        "was given a batch of (5, 3, 16) as input, but the network is planned for (8, 3, 16, 16)",
        "Sequential has no graph for an input of (5, 3, 2, 2)",
        "",
    ]
    for found in ranks.call("refused"):
        for sentence, expected in zip(found, said, strict=True):
            assert expected in sentence
