"""A network of which the only layer is on one of two ranks."""

from __future__ import annotations

import copy

import torch
from torch import nn

import synth
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import trace_model

SHAPE = (2, 3, 6, 8)


def idle() -> float:
    """How far outputs and gradients are from one process."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)).double()
    request = NetworkRequest(2, training=True, balance=2.0)
    plan = plan_network(trace_model(model, SHAPE).network, request)
    assert [each.grid.size for each in plan.placed_grids] == [1]
    net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan, check=False)
    x = torch.randn(SHAPE, dtype=torch.float64)
    outs = net(x), model(x)
    for out in outs:
        out.square().sum().backward()
    pairs = [(outs[0].full_tensor(), outs[1])]
    pairs += [(net.get_parameter(n).grad.full_tensor(), p.grad) for n, p in model.named_parameters()]
    return max(float((mine - own).abs().max()) for mine, own in pairs)
