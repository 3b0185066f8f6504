"""Ranks without words of any layer: the first thing that these ranks do together is to make the network."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool


@pytest.mark.ranks
def test_a_rank_without_layers_tells_the_other_where_it_is(tmp_path: Path) -> None:
    with RankPool(Path(__file__).with_name("idle_ranks.py"), 2, tmp_path) as pair:
        assert max(pair.call("idle", seconds=60)) < 1e-9
