"""Batch normalization of shards on four real ranks, in any layout, is that of the whole tensor."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "batch_norm_layout_ranks.py", 4)


@pytest.mark.parametrize("layout", ["samples", "channels", "overlapping", "idle"])
@pytest.mark.parametrize(
    ("options", "mean", "difference"),
    [
        ({}, 0, 1e-12),
        ({"affine": False}, 0, 1e-12),
        ({"momentum": None}, 0, 1e-12),
        ({"track_running_stats": False}, 0, 1e-12),
        ({}, 1e5, 1e-6),  # five digits are lost where a mean is subtracted
    ],
    ids=str,
)
def test_batch_normalization_of_shards_is_that_of_the_whole(
    options: dict[str, Any], mean: float, difference: float, layout: str, ranks: RankPool
) -> None:
    for found in ranks.call("batch_norm_differences", layout, options, mean):
        assert {"output", "dIn"} <= set(found)
        assert max(found.values()) < difference, found


def test_batch_normalization_refuses_one_value_per_channel(ranks: RankPool) -> None:
    for said in ranks.call("refusal_of_one_value_per_channel"):
        assert "one value per channel" in said
