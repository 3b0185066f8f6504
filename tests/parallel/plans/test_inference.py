"""Networks that only infer, on four real ranks: weights stay, activations move as planned."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "inference_ranks.py", 4)


# 1 % above the least limit: some layers compute tile by tile, and ranks hold smaller slices of the weights
TIGHT = 115_000


@pytest.mark.parametrize(("memory", "axes"), [(None, ""), (None, "ck"), (TIGHT, "hw")])
@pytest.mark.one_in(3)
def test_only_activations_move_as_planned(memory: int | None, axes: str, ranks: RankPool) -> None:
    results = ranks.call("as_planned", memory, axes)
    for found in results:
        assert found["error"] < 1e-12
        assert not found["ker"]
        assert found["edges"][0] == found["edges"][1]
        assert found["layers"][0] == found["layers"][1]
        assert found["planned"] <= found["weights"]
        if memory:
            assert found["most"] <= memory
            assert found["held"] < found["weights"]
    assert max(found["held"] for found in results) == results[0]["planned"]


@pytest.mark.parametrize("plan", [None, {"k": 2, "h": 2}, "channel"], ids=str)
@pytest.mark.one_in(3)
def test_new_weights_are_read_by_the_next_pass(plan: Any, ranks: RankPool) -> None:
    for found in ranks.call("loaded", plan):
        assert found["error"] < 1e-11
        assert found["same"]


@pytest.mark.slow
def test_training_is_refused(ranks: RankPool) -> None:
    trains = "parallelize the model without mode='inference' to train it"
    for found in ranks.call("refused"):
        for said in found[:3]:
            assert trains in said
        assert "call model.eval() first" in found[3]
        assert "mode is 'serve'; it must be training or inference" in found[4]
        assert "plans that were tried fits 20000 bytes per process; memory=" in found[5]
        assert found[6:] == ["", "False"]


def test_ranks_agree_once_per_pass(ranks: RankPool) -> None:
    for found in ranks.call("messages"):
        assert found == [1, 2, 1]


def test_lower_precision_is_that_of_one_process(ranks: RankPool) -> None:
    for found in ranks.call("lower_precision"):
        assert 0.5 < found["autocast"] < 1.5
        assert 0.5 < found["bfloat16"] < 1.5


@pytest.mark.parametrize("axes", ["", "ck"])
@pytest.mark.one_in(2)
def test_the_peak_of_every_rank_is_planned(axes: str, ranks: RankPool) -> None:
    for measured, planned in ranks.call("memory", axes):
        assert abs(planned / measured - 1) < 0.05
