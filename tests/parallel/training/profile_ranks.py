"""What torch.profiler shows of a network."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import synth

SHAPE = 4, 3, 16, 16


def model_of() -> nn.Sequential:
    """Two convolutions and a product, with statistics between."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, stride=2, groups=4)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 7 * 7, 5))


def measured(late: float) -> dict[str, Any]:
    """Metrics of two training steps and an evaluation, before which the last rank sleeps."""
    model = model_of()
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(SHAPE))
    net: Any = synth.parallelize(model, SHAPE, plan={"h": 2}, check=False)
    x = torch.ones(SHAPE)
    net(x).sum().backward()
    first, received = net.metrics(), net.received()
    none = net.metrics()
    for _ in range(2):
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(late)
        net(x).sum().backward()
    with torch.no_grad():
        net(x)
    found = net.metrics()
    return {
        "first": (first.passes, first.words == received),
        "none": (none.passes, none.words, none.operations),
        "passes": found.passes,
        "words": (found.words, net.received() - received),
        "bytes": found.bytes,
        "operations": (found.operations, counter.get_total_flops()),
        "seconds": (found.waiting, found.computing, found.seconds),
        "mfu": (found.mfu(1e9), found.operations / 2 / found.seconds / 1e9),
        "text": str(found),
        "names": sorted(asdict(found)),
    }


def names() -> tuple[list[str], list[str], list[str]]:
    """Names of ranges in the trace of a step; the layers; the exchanges of that step by which words came."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
    )
    net: Any = synth.parallelize(model, SHAPE, plan={"h": 2}, check=False)
    x = torch.ones(SHAPE)
    net(x).sum().backward()
    before = net.received()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        net(x).sum().backward()
    assert net.received() > before
    found = [each.name for each in profiler.events() if each.name.startswith("synth: ")]
    steps = [
        f"synth: {name}: {tensor}, {phase} step {step}"
        for name, layer in (("0", net.program.steps["_0"].module), ("3", net.program.steps["_3"].module))
        for phase, step, tensor in layer.traffic.steps
    ]
    return found, ["0", "1", "2", "3"], steps
