"""Real networks on real ranks: ten optimizer steps on four ranks are those of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from real_network_ranks import NETWORKS

import synth
from synth.base.errors import InfeasibleError

PROGRAM = "from real_network_ranks import main\n\nmain()\n"
LOSS, WEIGHTS = 1e-6, 1e-4  # relative, float64; docs/rounding.md says why not less


def trained(folder: Path, *case: str) -> dict[str, Any]:
    """How far the ranks and one process are apart after ten steps."""
    outcome = run_ranks(PROGRAM, 4, folder, *case, str(folder), seconds=1500)
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    found: dict[str, Any] = json.loads((folder / "apart.json").read_text())
    assert found["loss"] < LOSS, found
    assert found["weights"] < WEIGHTS, found
    assert found["messages"] < max(2, found["shared"]), found
    return found


@pytest.mark.ranks
@pytest.mark.slow
def test_resnet50_trains_as_planned(tmp_path: Path) -> None:
    assert trained(tmp_path, "resnet50", "planned", "sgd", "-")["parameters"] == 23_528_522


@pytest.mark.ranks
@pytest.mark.slow
def test_a_volume_that_one_process_cannot_hold(tmp_path: Path) -> None:
    factory, shape, _ = NETWORKS["cosmoflow"]
    model = factory().double()
    limit = int(0.6 * synth.plan_model(model, shape, 1).used_words * 8)
    with pytest.raises(InfeasibleError, match=r"memory=\d+ would do"):
        synth.plan_model(model, shape, 1, memory=limit)
    trained(tmp_path, "cosmoflow", "volume", "adam", str(limit))


RUNS = [
    *(f"resnet50 {how} sgd" for how in ("data", "spatial", "channel", "filter")),
    *(f"resnet50 {how} adam" for how in ("hybrid", "mixed")),
    *("wrn50_4 planned sgd", "wrn50_4 mixed sgd", "wrn50_4 spatial adam"),
    *("cosmoflow planned sgd", "cosmoflow filter adam"),
    *("cosmoflow64 volume sgd", "cosmoflow64 planned adam"),
]


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", RUNS)
def test_ten_steps(run: str, tmp_path: Path) -> None:
    trained(tmp_path, *run.split(), "-")
