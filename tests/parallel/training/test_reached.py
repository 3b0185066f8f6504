"""Which outputs a loss reaches: other parameters have no gradient, and ranks must reach the same."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


pair = pool_of(__file__, "reached_ranks.py", 2)


@pytest.mark.parametrize("plan", ["data", pytest.param({"h": 2}, marks=pytest.mark.slow), "filter"], ids=str)
@pytest.mark.parametrize("kind", ["region", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_what_a_loss_does_not_reach_has_no_gradient(plan: Any, kind: str, pair: RankPool) -> None:
    """Zeros would let weight decay and momentum change a parameter that stays in one process."""
    for found in pair.call("steps", plan, kind):
        assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("plan", [{"h": 2}, pytest.param("filter", marks=pytest.mark.slow)], ids=str)
def test_what_slices_leave_out_has_a_gradient_of_zeros(plan: Any, pair: RankPool) -> None:
    """As in torch: without zeros, weight decay and momentum would not change a parameter."""
    for found in pair.call("steps", plan, "slices"):
        assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("replicas", [1, 2])
def test_losses_that_reach_other_outputs_are_refused(replicas: int, pair: RankPool) -> None:
    for said in pair.call("apart", replicas):
        assert "rank 0 is at backward pass of forward pass 1 from outputs 0 of 2" in said
        assert "but rank 1 at backward pass of forward pass 1" in said
        assert ("from outputs 1 of 2" in said) == (replicas == 2)


def test_ranks_that_choose_other_outputs_are_refused(pair: RankPool) -> None:
    for said in pair.call("chosen_by_rank"):
        assert "rank 0 is at sum over ranks of (4, 3, 6, 8) of output 0 of forward pass 1" in said
        assert "rank 1 at sum over ranks of (4, 3, 6, 8) of output 1 of forward pass 1" in said


def test_a_layer_of_two_models_is_refused(pair: RankPool) -> None:
    """Each network would have a copy of it, and train that alone."""
    for refused, *accepted in pair.call("layer_of_two_models"):
        assert refused.startswith("a network of another model trains 0.weight of this model, too")
        assert not any(accepted), accepted


def test_a_network_whose_model_another_one_has_trained_says_so(pair: RankPool) -> None:
    """On the first rank, once: each network has copies of the parameters."""
    first, second = pair.call("networks_of_one_model")
    warned = {"after", "another one in training", "made later"}
    assert {name for name, times in first.items() if times} == warned, first
    assert set(first.values()) == {0, 1}
    assert not any(second.values()), second
