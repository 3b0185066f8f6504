"""What torch.profiler shows of a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import synth

SHAPE = 4, 3, 16, 16


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
