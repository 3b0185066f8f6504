"""Networks on a GPU, beside one process on it: on one rank, and on ranks that share it.

Messages go through gloo, or through nccl: then each rank calls itself a host, and nccl reaches it by sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPool

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
MODULE = Path(__file__).with_name("gpu_ranks.py")
CLOSE = 1e-6  # of the largest value, in float64


@pytest.fixture(scope="module", params=["gloo-1", "gloo-4", "nccl-1", "nccl-2", "nccl-4"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Ranks that share the GPU; tests make their tensors on it by name."""
    backend, size = request.param.split("-")
    folder = tmp_path_factory.mktemp(request.param)
    with RankPool(MODULE, int(size), folder, {"SYNTH_TEST_BACKEND": backend}) as made:
        yield made


def near(found: list[dict[str, float]], most: float = CLOSE) -> None:
    """Assert that all differences of all ranks are small."""
    for rank, each in enumerate(found):
        differences = {key: value for key, value in each.items() if key != "device"}
        assert max(differences.values()) < most, f"rank {rank}: {differences}"


@pytest.mark.parametrize("name", ["resnet", "cosmoflow", "unet"])
@pytest.mark.parametrize("plan", [None, "data", "spatial", "filter"])
def test_training(ranks: RankPool, name: str, plan: Any) -> None:
    found = ranks.call("train", name, "cuda", plan)
    near(found)
    assert all(each["device"] for each in found)


def test_local_statistics_in_float32(ranks: RankPool) -> None:
    if ranks.size > 1:
        near(ranks.call("as_ddp", "resnet", "cuda"))
    else:
        near(ranks.call("train", "resnet", "cuda", None, "float32", "local"), 1e-3)


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_autocast_and_scaled_gradients(ranks: RankPool, low: str) -> None:
    for found in ranks.call("autocast", "resnet", "cuda", low):
        assert found["loss"] < 0.05
        assert found["errors"] < 1.5


def test_decoding(ranks: RankPool) -> None:
    near(ranks.call("decode", "cuda"))


def test_checkpoints(ranks: RankPool, tmp_path: Path) -> None:
    near(ranks.call("checkpoint", "cuda", str(tmp_path)), 1e-12)


def test_memory_that_runs_out_ends_all_ranks(ranks: RankPool) -> None:
    if ranks.size == 1:
        pytest.skip("of several ranks")
    with pytest.raises(AssertionError) as failed:
        ranks.call("memory_runs_out", "cuda", seconds=60)
    last = ranks.size - 1
    assert f"rank {last}" in str(failed.value)
    assert "out of memory" in str(failed.value)
