"""A training that goes on from its last checkpoint, for a launcher that starts all ranks again after a fault.

    torchrun --nproc-per-node 2 --max-restarts 2 elastic_training.py FOLDER INIT FAULT

INIT is "synth" or "torch", whose function then gets a store of this start alone. In the first start, rank 1
runs the statement FAULT before step 2.
"""

from __future__ import annotations

import datetime
import os
import signal  # noqa: F401 - for statements
import sys
import time  # noqa: F401 - for statements
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

import synth

STEPS = 4
LIMIT = datetime.timedelta(seconds=20)


def main(folder: Path, init: str, fault: str) -> None:
    """What a rank does after each start."""
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if init == "synth":
        synth.init_process_group("gloo", LIMIT)
    else:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        agent = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LIMIT
        )
        store = dist.PrefixStore(f"start {start}", agent)
        dist.init_process_group("gloo", timeout=LIMIT, store=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    net = synth.parallelize(model, (4, 3, 8, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    done = sorted(
        int(each.name.partition("-")[2]) for each in folder.glob("step-*") if (each / ".metadata").exists()
    )
    if done:
        state = {"model": get_model_state_dict(net)}
        synth.load_checkpoint(state, folder / f"step-{done[-1]}")
        set_model_state_dict(net, state["model"])
    for step in range(done[-1] + 1 if done else 0, STEPS):
        if start == 0 and step == 2 and dist.get_rank() == 1:
            exec(fault)
        torch.manual_seed(100 + step)
        batch = torch.randn(4, 3, 8, 8)
        optimizer.zero_grad()
        loss = net(net.scatter(batch, like="input")).square().mean()
        loss.backward()
        optimizer.step()
        synth.save_checkpoint({"model": get_model_state_dict(net)}, folder / f"step-{step}")
        if dist.get_rank() == 0:
            print(f"start {start} step {step} loss {float(loss.detach()):.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
