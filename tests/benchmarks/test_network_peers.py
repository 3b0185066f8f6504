"""The networks parallelized by hand, beside which ours is measured, compute what one process does."""

from __future__ import annotations

import pytest
from rank_pool import RankPool, exact, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "network_peer_ranks.py", 2)


@pytest.mark.parametrize(("name", "names"), [("unet3d", ("value", "gradient")), ("decoder", ("value",))])
def test_rows_with_halos(ranks: RankPool, name: str, names: tuple[str, ...]) -> None:
    exact(ranks.call("rows", name), *names)


@pytest.mark.parametrize("inference", [False, True])
def test_one_process_with_all_cores(ranks: RankPool, inference: bool) -> None:
    exact(ranks.call("alone", inference), "loss")


def test_filters_with_gathered_channels(ranks: RankPool) -> None:
    exact(ranks.call("filters"), "value", "gradient")
