"""Autocast, half precision and memory formats on four real ranks: as in one process, layer by layer.

All errors are beside one process in float64, so that two computations in half precision can be compared.
"""

from __future__ import annotations

import statistics
from importlib.util import find_spec
from typing import Any

import pytest
from rank_pool import RankPool, pool_of

MODELS = ["mixed", "skips", "transposed", "partly", "few", "volumes", "lines", "checkpointed"]
PLANS: dict[str, Any] = {
    "samples": "data",
    "space": "spatial",
    "channels": "channel",
    "mixed": {"h": 2, "c": 2},
}
pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "precision_ranks.py", 4)


def assert_as_one_process(ranks: RankPool, *case: Any) -> None:
    """Every result and gradient has the dtype of one process, and about its rounding error."""
    for rank in ranks.call("compare", *case):
        ratios = []
        for key, (other_dtype, error, alone, rounding) in rank.items():
            assert not other_dtype, key
            assert error <= (2.5 if key.startswith("d ") else 1.5) * alone + rounding, key
            ratios.append((error + rounding) / (alone + rounding))
        assert len(ratios) > 10
        assert sum(ratios) / len(ratios) < 1.3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.one_in(12)
def test_autocast_is_as_in_one_process(model: str, ranks: RankPool) -> None:
    assert_as_one_process(ranks, model, None, "bfloat16")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", ["mixed", "volumes", pytest.param("skips", marks=pytest.mark.slow)])
@pytest.mark.one_in(12)
def test_autocast_with_every_plan(model: str, plan: str, ranks: RankPool) -> None:
    assert_as_one_process(ranks, model, PLANS[plan], "bfloat16")


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("monai") is None,
    reason="transformers or monai is absent; pip install -e '.[models]'",
)
@pytest.mark.parametrize("model", ["resnet", "convnext", "regnet", "unet", "densenet", "segresnet"])
def test_models_of_libraries_under_autocast(model: str, ranks: RankPool) -> None:
    """Gradients have no bound each: a rounded value may be on the other side of a kink of ReLU."""
    for rank in ranks.call("compare", model, {"h": 2, "c": 2}, "bfloat16"):
        results, gradients = [], []
        for key, (other_dtype, error, alone, rounding) in rank.items():
            assert not other_dtype, key
            assert key.startswith("d ") or error <= 1.5 * alone + rounding, key
            kind = gradients if key.startswith("d ") else results
            kind.append((error + rounding) / (alone + rounding))
        assert min(len(results), len(gradients)) > 15
        assert sum(results) / len(results) < 1.3
        assert statistics.median(gradients) < 3


@pytest.mark.parametrize("model", ["mixed", "lines"])
@pytest.mark.one_in(2)
def test_autocast_to_float16(model: str, ranks: RankPool) -> None:
    assert_as_one_process(ranks, model, None, "float16")


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float64"])
@pytest.mark.one_in(2)
def test_models_that_are_converted_before(stored: str, ranks: RankPool) -> None:
    assert_as_one_process(ranks, "smooth", {"h": 2, "c": 2}, None, stored)


def test_networks_that_are_converted_after(ranks: RankPool) -> None:
    assert_as_one_process(ranks, "smooth", {"h": 2, "c": 2}, None, "bfloat16", "after")


@pytest.mark.parametrize("how", ["channels-last", "inside"])
@pytest.mark.parametrize("plan", ["samples", "mixed"])
@pytest.mark.one_in(4)
def test_channels_last_and_backward_under_autocast(plan: str, how: str, ranks: RankPool) -> None:
    assert_as_one_process(ranks, "mixed", PLANS[plan], "bfloat16", "float32", how)


@pytest.mark.parametrize("plan", ["samples", "mixed"])
@pytest.mark.one_in(2)
def test_channels_last_without_autocast(plan: str, ranks: RankPool) -> None:
    assert_as_one_process(ranks, "smooth", PLANS[plan], None, "float32", "channels-last")


@pytest.mark.parametrize("plan", ["samples", "mixed"])
def test_channels_last_on_the_first_rank_alone(plan: str, ranks: RankPool) -> None:
    """It gives all others its parameters, whose memory has another order there."""
    assert_as_one_process(ranks, "smooth", PLANS[plan], None, "float32", "channels-last here")


@pytest.mark.slow
def test_what_one_process_refuses_is_refused(ranks: RankPool) -> None:
    """A dtype of the input that does not fit the parameters, on every rank and in one sentence."""
    for rank in ranks.call("refused"):
        for case, (alone, text) in rank.items():
            assert alone == (text != ""), (case, text)
            assert not alone or (text.startswith("ValueError") and "convert" in text), (case, text)
        assert sum(alone for alone, _ in rank.values()) > 10


@pytest.mark.parametrize("low", [None, "bfloat16", "float16"])
def test_regions_of_the_model_are_honoured(low: str | None, ranks: RankPool) -> None:
    """Autocast that forward itself enables or disables, also for the device of a tensor."""
    for alone, here, error, modules, steps in ranks.call("regions", low):
        assert here == alone == "torch.float32"
        assert steps == modules == [f"torch.{low or 'float32'}", "torch.float32", "torch.bfloat16"]
        assert error < 0.01


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.one_in(2)
def test_words_that_move_are_of_the_lower_precision(plan: str, ranks: RankPool) -> None:
    """As many words as in float32; the prefetched weights are cast before their gather starts."""
    wide, low = ranks.call("moved", PLANS[plan], None), ranks.call("moved", PLANS[plan], "bfloat16")
    for one, other in zip(wide, low, strict=True):
        assert set(one["words"]) == {"torch.float32"}
        assert other["words"] == {"torch.bfloat16": one["words"]["torch.float32"]}
        assert one["received"] == other["received"] > 0
        assert len(other["weights"]) == (0 if plan == "channels" else 3)  # whole slices already
        for shard, gathered in other["weights"]:
            assert shard == "torch.bfloat16"
            assert gathered in (True, "torch.bfloat16")


# the largest error of each tensor, in errors of one process: a sum over four ranks rounds every part once
# more, a bias is added to what is rounded already, and float32 adds the parts
MOST = {"Out": 1.35, "dIn": 1.25, "dKer": 1.25, "dBias": 1.05}


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
@pytest.mark.parametrize("grid", [{"c": 4}, {"k": 4}, {"b": 4}, {"h": 2, "c": 2}], ids=str)
@pytest.mark.one_in(6)
def test_sums_over_ranks_round_about_as_one_process(grid: dict[str, int], low: str, ranks: RankPool) -> None:
    """In half precision, added in half precision, Out along c=4 would have 1.5 errors of one process."""
    found = ranks.call("reductions", grid, low)
    for tensor, most in MOST.items():
        ours, alone = (sum(rank[tensor][i] ** 2 for rank in found) ** 0.5 for i in (0, 1))
        assert 0 < ours < most * alone, tensor


def test_passes_that_stream_round_once_for_every_panel(ranks: RankPool) -> None:
    found = ranks.call("reductions", {"k": 4}, "bfloat16", 450_000)
    ours, alone = (sum(rank["Out"][i] ** 2 for rank in found) ** 0.5 for i in (0, 1))
    assert 1.35 * alone < ours < 1.7 * alone


def test_dtypes_that_forward_reads_are_those_under_autocast(ranks: RankPool) -> None:
    """A plan for other dtypes would take another branch, or hide rows by a number that is too small."""
    for found in ranks.call("dtypes_read"):
        assert len(found) == 30
        for own, dtype, off in found:
            assert own == dtype
            assert off < 8, (own, off)


def test_autocast_on_one_rank_is_refused_on_all(ranks: RankPool) -> None:
    for said in ranks.call("dtypes_read_on_one_rank"):
        assert "under autocast to torch.bfloat16" in said
        assert "all ranks must call the same" in said
