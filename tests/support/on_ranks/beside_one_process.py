"""Steps of a network on ranks beside those of its model in one process, and sentences that refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from small_networks import near
from torch import nn

import synth
from synth.runtime.model.network import Network

Measured = dict[str, Any]


def error(one: torch.Tensor, other: torch.Tensor) -> float:
    """By how much the words of one tensor differ from another's, beyond 0.2 % of them."""
    return float(((one - other).abs() - 2e-3 * other.abs()).max().detach())


def state_error(net: Network, model: nn.Module) -> float:
    """The same of all parameters and buffers. Raises `AssertionError` for other keys, or in another order."""
    state, expected = net.full_state_dict(), model.state_dict()
    assert list(state) == list(expected)
    return max([0.0, *(error(state[key], values) for key, values in expected.items())])


def refusal(run: Callable[[], Any]) -> str:
    """The sentence with which something is refused; "" where it is not."""
    try:
        run()
    except ValueError as fault:
        return str(fault)
    return ""


def three_steps(whole: nn.Module, shape: tuple[int, ...], plan: Any, procs: Any = None) -> Measured:
    """error: of outputs, losses and the state afterwards. words: received by this rank."""
    net = synth.parallelize(whole, shape, procs or dist.get_world_size(), plan)
    before, errors = net.received(), []
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9) for m in (net, whole)]
    for _ in range(3):
        batch = torch.randn(shape)
        right = whole(batch)
        right = getattr(right, "logits", right)
        target = torch.randn(right.shape)
        out = net.gather(net(net.scatter(batch)))
        out = getattr(out, "logits", out)
        losses = [nn.functional.mse_loss(each, target) for each in (out, right)]
        errors += [error(out, right), error(*losses)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"error": max(*errors, state_error(net, whole)), "words": net.received() - before}


def sgd_steps(net: Network, whole: nn.Module, shape: tuple[int, ...], steps: int) -> float:
    """SGD steps on the ranks and in one process: the largest difference of outputs, losses and the state."""
    differences = []
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (net, whole)]
    for _ in range(steps):
        batch = torch.randn(shape, dtype=net.program.dtype)
        right = whole(batch)
        target = torch.randn(right.shape, dtype=net.program.dtype)
        out = net.gather(net(net.scatter(batch)))
        losses = [nn.functional.mse_loss(each, target) for each in (out, right)]
        differences.append(near(out.detach(), right.detach()))
        differences.append(near(losses[0].detach(), losses[1].detach()))
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state = net.full_state_dict()
    for key, values in whole.state_dict().items():
        differences.append(near(state[key], values))
    return max(differences)
