"""accelerate's usual loop around a network: as in one process, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, pool_of

pytest.importorskip("accelerate")
pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "accelerate_ranks.py", 4)


@pytest.mark.parametrize("plan", [{"h": 4}, "filter"])
@pytest.mark.one_in(2)
def test_a_loop_with_a_prepared_optimizer(plan: Any, ranks: RankPool) -> None:
    for error in ranks.call("loop", plan, seconds=100):
        assert error < 1e-8


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("network", "accelerate: do not prepare() it"),
        ("loader", "plain tensors and numbers must be the same on all ranks"),
    ],
)
def test_what_is_not_to_be_prepared(what: str, text: str, ranks: RankPool) -> None:
    for said in ranks.call("refused", what, seconds=100):
        assert text in said
