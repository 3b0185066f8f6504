"""A trace of torch.profiler names layers, what moves, and waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool


@pytest.mark.ranks
def test_layers_exchanges_and_waiting_have_names(tmp_path: Path) -> None:
    with RankPool(Path(__file__).with_name("profile_ranks.py"), 2, tmp_path) as pool:
        for found, layers, exchanges in pool.call("names"):
            assert {f"synth: {each}" for each in layers} <= set(found)
            assert exchanges
            assert set(exchanges) <= set(found)
            assert any(
                each.startswith("synth: sum of ") and each.endswith(" words of gradients") for each in found
            )
            assert {"synth: wait for messages", "synth: wait for sums of gradients"} <= set(found)
