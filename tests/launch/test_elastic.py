"""torchrun starts all ranks again after a fault: the training goes on from its checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.ranks
SCRIPT = Path(__file__).parents[1] / "support/elastic_training.py"


def losses() -> list[float]:
    """Those of the same training in one process."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.05), []
    for step in range(4):
        torch.manual_seed(100 + step)
        batch = torch.randn(4, 3, 8, 8)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("init", ["synth", "torch"])
@pytest.mark.parametrize("fault", ["os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('a fault')"])
def test_a_training_that_torchrun_starts_again_goes_on(init: str, fault: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "2"]
    command += ["--nproc-per-node", "2", str(SCRIPT), str(tmp_path), init, fault]
    ended = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, capture_output=True, timeout=250
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = re.findall(r"start (\d) step (\d) loss ([\d.]+)", ended.stdout)
    assert [int(step) for _, step, _ in told] == [0, 1, 2, 3], ended.stdout
    assert {start for start, _, _ in told} >= {"0", "1"}
    assert [float(loss) for _, _, loss in told] == pytest.approx(losses(), rel=1e-4)
