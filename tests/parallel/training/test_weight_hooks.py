"""Old weight norms, whose hooks compute a weight: it is read as its parameters now say, with its gradient."""

from __future__ import annotations

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks
NORMS = "weight_norm", "spectral_norm"


pair = pool_of(__file__, "weight_hook_ranks.py", 2)


@pytest.mark.parametrize("plan", ["data", "channel"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.one_in(2)
def test_a_weight_is_read_as_its_parameters_are(norm: str, plan: str, pair: RankPool) -> None:
    """In losses, too, which reach the parameters through it."""
    for found in pair.call("read", norm, plan):
        assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("norm", NORMS)
def test_copies_and_removed_hooks_are_followed(norm: str, pair: RankPool) -> None:
    for found in pair.call("changed", norm):
        assert found.pop("listed")
        assert found.pop("class")
        assert max(found.values()) < 1e-9, found
