"""What the ranks of the tests of old weight norms do: they read weights that hooks compute."""

from __future__ import annotations

import copy
from typing import Any

import torch
from small_networks import near
from torch import nn
from torch.nn import utils
from torch.nn.utils.spectral_norm import SpectralNorm

import synth
from synth.runtime.model.network import Network

SHAPE = (4, 3, 8, 6)


class Normed(nn.Module):
    """A convolution with an old weight norm, and a method that reads its weight."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.conv = getattr(utils, norm)(nn.Conv2d(3, 6, 3, padding=1))
        self.last = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(x).tanh())

    def penalty(self) -> Any:
        """Of the weight as it is now."""
        return self.conv.weight.square().sum()


def made(norm: str) -> Any:
    """The model; torch does not copy it."""
    torch.manual_seed(0)
    return Normed(norm).double()


def both(norm: str, plan: Any) -> tuple[Network, Any]:
    """A network and its model in one process."""
    return synth.parallelize(made(norm), SHAPE, plan=plan), made(norm)


def whole(values: Any) -> torch.Tensor:
    """A tensor as a whole."""
    return values.full_tensor() if hasattr(values, "full_tensor") else values


def now(model: Any) -> torch.Tensor:
    """The weight that the hook of a model in one process would store now, without a change of buffers."""
    (hook,) = model.conv._forward_pre_hooks.values()
    kept = {"do_power_iteration": False} if isinstance(hook, SpectralNorm) else {}
    return hook.compute_weight(model.conv, **kept)


def read(norm: str, plan: Any) -> dict[str, float]:
    """Differences from one process of what is read, and of steps whose losses have the weight."""
    net, model = both(norm, plan)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.3, momentum=0.9) for each in (net, model)]
    found = {"weight": 0.0, "loss": 0.0, "later": 0.0}
    for _ in range(3):
        batch, losses = torch.randn(SHAPE, dtype=torch.float64), []
        for each, optimizer in zip((net, model), optimizers, strict=True):
            optimizer.zero_grad()
            loss = (each(batch) - 1).square().mean() + each.penalty() + each.conv.weight.abs().mean()
            loss.backward()
            losses.append(whole(loss).detach())
        found["loss"] = max(found["loss"], near(*losses))
        found["weight"] = max(found["weight"], near(whole(net.conv.weight), model.conv.weight))
        for optimizer in optimizers:
            optimizer.step()
        found["later"] = max(found["later"], near(whole(net.conv.weight), now(model)))
    state = net.full_state_dict()
    found["state"] = max(near(state[key], values) for key, values in model.state_dict().items())
    return found


def changed(norm: str) -> dict[str, Any]:
    """The same of a copy, and after the hook was removed; what is read of a network that is one layer."""
    net, model = both(norm, "data")
    batch = torch.randn(SHAPE, dtype=torch.float64)
    for each in (net, model):
        each.eval()(batch).square().sum().backward()
        torch.optim.SGD(each.parameters(), lr=0.1).step()
    two = copy.deepcopy(net)
    with torch.no_grad():
        two.conv.bias.zero_()
    found = {"copy": near(whole(two.conv.weight), now(model)), "listed": "weight" in dir(net.conv)}
    for each in (net, model):
        getattr(utils, f"remove_{norm}")(each.conv)
    found["removed"] = near(whole(net.conv.weight), model.conv.weight)
    found["output"] = near(whole(net(batch)).detach(), model(batch).detach())
    found["class"] = type(net.conv) is nn.Conv2d
    root, model = synth.parallelize(made(norm).conv, SHAPE, plan="data"), made(norm)
    with torch.no_grad():
        for each in (root, model.conv):
            getattr(each, "weight_g" if norm == "weight_norm" else "weight_orig").square_()
    found["root"] = near(whole(root.weight), now(model))
    return found
