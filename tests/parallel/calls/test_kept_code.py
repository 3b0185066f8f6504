"""What torch keeps of compiled code is not taken for another network by a later process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synth.runtime.compiled.operator import Entry

PROGRAM = """
import torch, torch.distributed as dist, sys
import synth
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
channels, scale = map(int, sys.argv[1:])
model = torch.nn.Sequential(torch.nn.Conv2d(3, channels, 3, padding=1), torch.nn.Upsample(scale_factor=scale))
net = synth.parallelize(model, (2, 3, 8, 8), outputs="whole", check=False)
x = torch.randn(2, 3, 8, 8)
made = torch.compile(lambda x: net(x) + 1, fullgraph=True)(x)
assert made.shape == model(x).shape, made.shape
print(float((made - model(x) - 1).abs().max()))
"""


def test_networks_of_forked_processes_have_numbers_of_their_own() -> None:
    def told(into: Any) -> None:
        into.send(Entry(print, print, print).number)  # type: ignore[arg-type]

    fork, found = multiprocessing.get_context("fork"), []
    for _ in range(2):
        here, there = fork.Pipe()
        process = fork.Process(target=told, args=(there,))
        process.start()
        found.append(here.recv())
        process.join()
    assert len({*found, Entry(print, print, print).number}) == 3  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_later_process_with_another_network_is_compiled_by_itself(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    for channels, scale in ((3, 1), (8, 2)):
        command = [sys.executable, "-c", PROGRAM, str(channels), str(scale)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        assert float(done.stdout.split()[-1]) < 1e-5
