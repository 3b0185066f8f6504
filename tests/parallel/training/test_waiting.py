"""Gradients that wait for their sum: right whatever is done between, or refused; users' checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import waiting_ranks
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks
PLANS = [
    "data",
    {"h": 2},
    "filter",
]  # where gradients of weights are summed in buckets, and where those of biases


pair = pool_of(__file__, "waiting_ranks.py", 2)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.one_in(4)
def test_gradients_wait_only_as_long_as_the_user_keeps_them(plan: Any, pair: RankPool) -> None:
    for found in pair.call("summed", plan):
        assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("plan", PLANS[:2], ids=str)
@pytest.mark.one_in(2)
def test_what_would_use_gradients_without_their_sums_is_refused(plan: Any, pair: RankPool) -> None:
    first, second = pair.call("refused", plan)
    assert first == second
    for name, (_, said) in waiting_ranks.REFUSED.items():
        assert said in first[name], (name, first[name])


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.one_in(2)
def test_a_network_in_a_checkpoint_of_the_user(plan: Any, pair: RankPool) -> None:
    """Ranks save more or fewer tensors, so a checkpoint that stops early would stop them apart."""
    assert max(pair.call("computed_again", plan)) < 1e-9
