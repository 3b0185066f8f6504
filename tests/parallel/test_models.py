"""Models of other libraries, and layers that they have, on four real ranks: they train as in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ranks import free_port

HERE = Path(__file__).parent
needs_models = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("monai") is None,
    reason="transformers or monai is absent; pip install -e '.[models]'",
)
pytestmark = pytest.mark.ranks


def told(folder: Path, *jobs: str, seconds: float = 280) -> str:
    """What rank 0 said after all ranks ran functions of `model_ranks` to their ends, one after the other."""
    paths = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent / "support"), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "model_ranks.py"), str(free_port()), str(folder), *jobs]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    logs = [path.read_text() for path in sorted(folder.glob("log-*"))]
    assert process.returncode == 0, "\n".join([process.stderr, *logs])
    assert len(logs) == 4
    return logs[0]


@needs_models
def test_models_train_as_in_one_process(tmp_path: Path) -> None:
    said = told(tmp_path, "train=tiny free")
    assert said.count("model ") == 8
    assert "gathered" not in said


@needs_models
@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "spatial", "channel", "filter", "rows_channels"])
def test_models_train_with_every_strategy(plan: str, tmp_path: Path) -> None:
    told(tmp_path, f"train=tiny {plan}")


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "spatial", "channel", "filter", "rows_channels"])
def test_layers_train_with_every_strategy(plan: str, tmp_path: Path) -> None:
    told(tmp_path, f"train=own {plan}")


def test_layers_states_and_dropout(tmp_path: Path) -> None:
    """Layers train, states move between grids, dropout is the same on all of them; one start for all."""
    said = told(tmp_path, "train=own free", "moves=-", "drops=0.3", "refused=-", "fault=-", "sides=-")
    gathered = {line.partition(":")[0] for line in said.splitlines() if "gathered" in line}
    assert gathered == {"pad", "flatten", "best", "getitem", "conv"}
    for sentence in (
        "the state is not of this model: it lacks norm.bias of shape (3,);",
        "its conv.weight has the shape (3, 3, 1, 1), the model's (3, 3, 3, 3);",
        "it has more.weight, which the model lacks;",
        "it lacks conv.weight of shape (3, 3, 3, 3) but has module.conv.weight;",
        "the model gives 2 tensors, not a single one; wrap it in a module that returns the one",
        "the model makes a tensor of (3,) by itself; register it as a buffer",
        "Asks has no graph for an input of (4, 3)",
        "a batch of (4, 4, 8, 8) may be input or output, which lie differently; add like='input' or",
        "a batch is like input or output, not like 'target'",
        "a batch of (3, 4, 8, 8) is no input of (4, 4, 8, 8) nor output of (4, 4, 8, 8)",
        "a batch of (3, 4, 8, 8) is no output of (4, 4, 8, 8)",
    ):
        assert sentence in said


def test_what_is_frozen_evaluated_or_detached_stays_so(tmp_path: Path) -> None:
    """On two plans; then what was frozen is trained, and the other way round."""
    said = told(tmp_path, "stays=free,spatial", "modes=-")
    for sentence in (
        "forward does otherwise in evaluation, at output; parallelize a model that is in evaluation, and",
        "forward does otherwise in training, at sigmoid; parallelize a model that is in training, and load",
        "dropout drops words in evaluation, too; parallelize",
    ):
        assert sentence in said
