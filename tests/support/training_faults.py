"""A training loop in which one rank has a fault.

    python training_faults.py TIMEOUT MARK RANK STATEMENT [STEP]

The rank runs the statement in a step, after it has touched the mark. Ranks are told as torchrun tells them.
REPLICAS is the number of replicas (1). PACE is the mean of seconds that each part of a step takes longer.
UNEVEN: batches have a sample less from the step of the fault on.
"""

from __future__ import annotations

import datetime
import os
import random
import signal  # noqa: F401 - for statements
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import synth


def main() -> None:
    """What one rank does: steps without end, or as many as STEPS says."""
    timeout, mark, rank, statement, *rest = sys.argv[1:]
    step_of_fault = int(rest[0]) if rest else 3
    limit = datetime.timedelta(seconds=float(timeout))
    synth.init_process_group("gloo", limit)
    me = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    if me == int(rank) and step_of_fault == 0:
        touch(mark)
        exec(statement, {**globals(), "model": model})
    replicas = int(os.environ.get("REPLICAS", "1"))
    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas)) if replicas > 1 else None
    touch(f"{mark}.called-{me}")
    # a plan for the measured machine would be another one while that is busy
    net = synth.parallelize(model, (4, 4, 8, 8), mesh, objective="words", check_finite="finite" in os.environ)
    touch(f"{mark}.made-{me}")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batch = torch.rand(4, 4, 8, 8)
    for step in range(int(os.environ.get("STEPS", "1000000"))):
        optimizer.zero_grad()
        pause()
        uneven = "UNEVEN" in os.environ and step >= step_of_fault
        given = batch[:3] if uneven else net.scatter(batch, like="input")
        loss = net.gather(net(given)).square().mean()
        pause()
        loss.backward()
        if me == int(rank) and step == step_of_fault:
            time.sleep(0.7)  # a heartbeat is given
            touch(mark)
            exec(statement, {**globals(), "net": net})
        pause()
        optimizer.step()
        time.sleep(0.01)


def pause() -> None:
    """Take some time, each rank another."""
    time.sleep(random.uniform(0, 2) * float(os.environ.get("PACE", "0")))


def touch(mark: str) -> None:
    """Tell the test when the fault comes, or when the network is made."""
    with open(mark, "w", encoding="utf-8"):
        pass


if __name__ == "__main__":
    main()
