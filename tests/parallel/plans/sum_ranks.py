"""What the ranks of the tests of sums do."""

from __future__ import annotations

import copy
from typing import Any

import torch
from shared_plan import shared_plan
from sum_models import MODELS, SHAPE

import synth


def compared(names: list[str], axes: str) -> dict[str, tuple[float, int, int]]:
    """By name: the largest error of output and gradients beside one process; words, received and planned."""
    return {name: _compared(name, axes) for name in names}


def _compared(name: str, axes: str) -> tuple[float, int, int]:
    torch.manual_seed(len(name))
    alone = MODELS[name]().double()
    plan = shared_plan(alone, SHAPE, axes=axes)
    net = synth.parallelize(copy.deepcopy(alone), SHAPE, plan=plan, check=False)
    batch, before = torch.randn(SHAPE, dtype=torch.float64), net.received()
    outs = net(batch), alone(batch)
    for out in outs:
        out.square().sum().backward()
    words = net.received() - before
    pairs = [(outs[0].full_tensor(), outs[1])]
    for one, other in zip(net.parameters(), alone.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        pairs += [] if other.grad is None else [(one.grad.full_tensor(), other.grad)]
    error = max(_apart(*pair) for pair in pairs)
    return error, words, plan.words.step[net.ranks.me]


def _apart(one: Any, other: Any) -> float:
    return float((one - other).detach().abs().max() / (1 + other.detach().abs().max()))
