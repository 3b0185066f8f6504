"""Weights that are gathered before their layer's turn, on real ranks: the same bits, in another order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import RankPool, RankPools

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(Path(__file__).with_name("prefetch_ranks.py"), tmp_path_factory.mktemp("ranks")) as pools:
        yield pools


@pytest.fixture
def ranks(ranks_of: RankPools) -> RankPool:
    return ranks_of(4)


CASES = [
    *(pytest.param("residual", plan, marks=pytest.mark.slow) for plan in ("free", "data", "mixed")),
    ("cosmo", "volume"),
    ("odd", "free"),
]


def assert_same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same names, and the same values to the last bit."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize(("model", "plan"), CASES)
@pytest.mark.one_in(2)
def test_a_step_with_prefetch_equals_one_without(model: str, plan: str, ranks: RankPool) -> None:
    """Values and received words do not depend on how early Ker is gathered, and no gather is left over."""
    without = ranks.call("step", model, plan, 0)
    assert not any(each["prefetches"] for each in without)
    for ahead in (1, 3, 100):
        for found, expected in zip(ranks.call("step", model, plan, ahead), without, strict=True):
            assert_same_bits(found["values"], expected["values"])
            assert found["words"] == expected["words"]
            assert found["prefetches"]
            assert found["unfinished"] == 0

    evaluated = (ranks.call("output_without_gradients", model, plan, ahead) for ahead in (1, 0))
    for found, expected in zip(*evaluated, strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize(("model", "plan"), CASES)
@pytest.mark.one_in(2)
def test_frozen_weights_are_prefetched_and_get_no_gradient(model: str, plan: str, ranks: RankPool) -> None:
    without = ranks.call("step", model, plan, 0)
    with_frozen = ranks.call("step_with_frozen_weights", model, plan, 1)
    for (found, frozen), expected in zip(with_frozen, without, strict=True):
        assert frozen
        assert_same_bits(found, {k: v for k, v in expected["values"].items() if k not in frozen})


def test_a_layer_is_prefetched_while_the_one_before_it_computes(ranks: RankPool) -> None:
    """In the backward pass the sum of a layer's dKer arrives while the next layer computes."""
    for found in ranks.call("events", 1):
        assert found == [
            *("prefetches 0", "prefetches 1", "computes 0", "prefetches 2", "computes 1"),
            *("prefetches 3", "computes 2", "computes 3"),
            *("sends 3", "sends 2", "arrives 3", "sends 1", "arrives 2"),
            *("sends 0", "arrives 1", "arrives 0"),
        ]


def test_two_layers_are_prefetched_at_once(ranks: RankPool) -> None:
    for found in ranks.call("events", 2):
        assert found == [
            *("prefetches 0", "prefetches 1", "prefetches 2", "computes 0", "prefetches 3", "computes 1"),
            *("computes 2", "computes 3"),
            *("sends 3", "sends 2", "sends 1", "arrives 3", "sends 0", "arrives 2"),
            *("arrives 1", "arrives 0"),
        ]


def test_two_forward_passes_before_one_backward_pass(ranks: RankPool) -> None:
    early, plain = (ranks.call("two_batches_in_one_backward_pass", ahead) for ahead in (1, 0))
    for found, expected in zip(early, plain, strict=True):
        assert_same_bits(found, expected)


def test_recomputed_activations_and_repeated_backward_passes(ranks: RankPool) -> None:
    once = [each["values"] for each in ranks.call("step", "biases", "hybrid", 0)]
    for found, expected in zip(ranks.call("recomputed_step", 1), once, strict=True):
        assert_same_bits(found, expected)
    for found, expected in zip(ranks.call("two_backward_passes_of_one_graph", 1), once, strict=True):
        assert_same_bits(found, {name: 2 * each for name, each in expected.items() if name != "output"})


def test_the_gradient_of_one_weight_alone(ranks: RankPool) -> None:
    """The other weights' prefetches are left over by no later step."""
    once = [each["values"] for each in ranks.call("step", "biases", "hybrid", 0)]
    for (name, gradient, later), expected in zip(ranks.call("gradient_of_one_weight", 1), once, strict=True):
        np.testing.assert_array_equal(gradient, expected[name])
        assert_same_bits(later, expected)


@pytest.mark.slow
@pytest.mark.parametrize("large", [None, 0], ids=["small messages", "large messages"])
@pytest.mark.parametrize("rebuilt", [False, True], ids=["same network", "new network"])
@pytest.mark.parametrize("place", [1, 2])
def test_a_step_after_a_failed_one_is_right(
    place: int, rebuilt: bool, large: int | None, ranks_of: RankPools
) -> None:
    """All ranks fail in the same layer, in the forward and in the backward pass."""
    ranks = ranks_of(3)
    expected = [each["values"] for each in ranks.call("step", "biases", "data", 0)]
    steps = ranks.call("step_after_failed_steps", large, place, rebuilt)
    for after_failures, values in zip(steps, expected, strict=True):
        for found in after_failures:
            assert_same_bits(found, values)


def test_a_hook_that_could_change_a_prefetched_weight_is_refused(
    ranks_of: RankPools,
) -> None:
    for refusal, steps_without_hook in ranks_of(2).call("step_with_a_hook"):
        assert "has hooks" in refusal
        assert steps_without_hook


@pytest.mark.slow
def test_idle_ranks_check_for_nan_in_the_order_of_the_others(
    ranks_of: RankPools,
) -> None:
    without = ranks_of(5).call("step_with_idle_ranks", 0)
    for ahead in (1, 2):
        for found, expected in zip(ranks_of(5).call("step_with_idle_ranks", ahead), without, strict=True):
            assert_same_bits(found, expected)


def test_a_gathered_kernel_is_freed_before_out_is_summed(ranks: RankPool) -> None:
    """Plans count on it: no later pass needs the slice."""
    assert ranks.call("kernels_freed_before_the_sum_of_out") == [[True]] * 4
