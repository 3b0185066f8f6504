"""A trace of torch.profiler names layers, what moves, and waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool

from synth.runtime.model.metrics import Metrics


@pytest.mark.ranks
def test_metrics_of_passes(tmp_path: Path) -> None:
    late = 0.4
    with RankPool(Path(__file__).with_name("profile_ranks.py"), 2, tmp_path) as pool:
        for rank, found in enumerate(pool.call("measured", late)):
            assert found["first"] == (1, True)
            assert found["none"] == (0, 0, 0)
            assert found["passes"] == 3
            received, right = found["words"]
            assert received == right > 0
            assert found["bytes"] == 4 * received
            counted, forward = found["operations"]
            assert counted == (2 * 3 + 1) * forward  # torch's own count of the model in one process
            waiting, computing, seconds = found["seconds"]
            assert waiting + computing == pytest.approx(seconds)
            assert computing > 0
            assert waiting > 2 * late * 0.9 or rank == 1  # for the rank that sleeps
            share, right = found["mfu"]
            assert share == pytest.approx(right)
            assert found["text"].startswith("3 passes, ")
            assert "waiting" in found["names"]


def test_a_share_of_no_peak() -> None:
    made = Metrics(1, 2, 8, 0.5, 0.1, 100, 4)
    assert made.rate == 50.0
    assert made.computing == pytest.approx(0.4)
    with pytest.raises(ValueError, match="peak is 0; give"):
        made.mfu(0)


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
