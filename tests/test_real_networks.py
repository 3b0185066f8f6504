"""Real networks on real ranks: ten optimizer steps on four ranks are those of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_ranks import NETWORKS
from ranks import run_ranks

import synth
from synth.errors import InfeasibleError

PROGRAM = "from model_ranks import main\n\nmain()\n"
LOSS, WEIGHTS = 1e-7, 1e-5  # relative, float64; docs/training.md says why not less


def trained(folder: Path, *case: str) -> dict[str, Any]:
    """How far the ranks and one process are apart after ten steps."""
    outcome = run_ranks(PROGRAM, 4, folder, *case, str(folder), seconds=1500)
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    found: dict[str, Any] = json.loads((folder / "apart.json").read_text())
    assert found["loss"] < LOSS, found
    assert found["weights"] < WEIGHTS, found
    assert found["messages"] < found["shared"], found
    return found


@pytest.mark.ranks
def test_resnet50_trains_as_planned(tmp_path: Path) -> None:
    assert trained(tmp_path, "resnet50", "planned", "sgd", "-")["parameters"] == 23_528_522


@pytest.mark.ranks
def test_a_volume_that_one_process_cannot_hold(tmp_path: Path) -> None:
    factory, shape, _ = NETWORKS["cosmoflow"]
    model = factory().double()
    limit = int(0.6 * synth.plan_model(model, shape, 1).memory_words * 8)
    with pytest.raises(InfeasibleError, match=r"--memory \d+ would do"):
        synth.plan_model(model, shape, 1, memory=limit)
    trained(tmp_path, "cosmoflow", "volume", "adam", str(limit))


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("how", ["data", "spatial", "channel", "filter", "hybrid", "mixed", "planned"])
@pytest.mark.parametrize("network", ["resnet50", "wrn50_4"])
def test_residual_networks(network: str, how: str, optimizer: str, tmp_path: Path) -> None:
    trained(tmp_path, network, how, optimizer, "-")


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["volume", "channel", "filter", "planned"])
def test_volumes(how: str, tmp_path: Path) -> None:
    trained(tmp_path, "cosmoflow64", how, "adam", "-")
