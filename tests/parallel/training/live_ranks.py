"""What the ranks of `test_live` do: change a network after `parallelize`, and a model in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

import synth

SHAPE = (4, 3, 8, 6)
PLANS: dict[str, Any] = {"samples": "data", "rows": {"h": 2}, "filters": {"k": 2}}


class Block(nn.Module):
    """A part of a model with a setting of its own."""

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(width, width, 3, padding=1), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.conv(x)


class Model(nn.Module):
    """Kinds of modules that have settings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.act, self.drop = nn.LeakyReLU(0.1), nn.Dropout(0.0)
        self.norm, self.instances = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)
        self.blocks = nn.ModuleList([Block(4), Block(4, 0.5)])
        self.tail = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        self.head = nn.Conv2d(4, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.act(self.bn(self.conv(x))))
        x = self.instances(self.norm(x)) + x
        for block in self.blocks:
            x = block(x)
        return self.head(self.tail(x))


Run = Callable[[Any], Any]


class Change(NamedTuple):
    """run: changes a network, or a model. refused: a part of the sentence; "" where it is as in one process.
    undo: what then makes the network usable.
    """

    run: Run
    refused: str = ""
    undo: Run | None = None


CHANGES: dict[str, Change] = {}


def effective(name: str) -> Callable[[Run], Run]:
    """A change after which the network does what one process does."""

    def add(run: Run) -> Run:
        assert name not in CHANGES
        CHANGES[name] = Change(run)
        return run

    return add


def setting(module: str, name: str, value: Any) -> None:
    """A change of one attribute."""
    effective(f"{module}.{name} = {value!r}")(lambda net: setattr(net.get_submodule(module), name, value))


setting("bn", "momentum", 0.9)
setting("bn", "momentum", None)
setting("bn", "eps", 0.5)
setting("act", "negative_slope", 0.7)
setting("drop", "p", 1.0)
setting("norm", "eps", 0.5)
setting("instances", "eps", 0.5)


@effective("update_bn")
def updated(net: Any) -> None:
    """The last step of stochastic weight averaging."""
    update_bn([batch(seed) + seed for seed in range(3)], net)


def batch(seed: int) -> torch.Tensor:
    """A whole batch."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).double()


def whole(values: Any) -> torch.Tensor:
    """All words of a tensor."""
    return (values.full_tensor() if hasattr(values, "full_tensor") else values).detach()


def step(net: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """What a training step and an evaluation give."""
    net.zero_grad()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    out = net.train()(batch(seed))
    functional.silu(out).square().mean().backward()
    found = {"out": whole(out)}
    found |= {f"d{key}": whole(p.grad) for key, p in net.named_parameters() if p.grad is not None}
    optimizer.step()
    found["evaluated"] = whole(net.eval()(batch(seed + 1)))
    net.train()
    return found | {key: whole(values) for key, values in net.state_dict().items()}


def largest_error(net: nn.Module, model: nn.Module, seed: int) -> float:
    """The largest difference of a step, relative to the largest word of each tensor."""
    one, other = step(model, seed), step(net, seed)
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    shapes = {key: (values.shape, other[key].shape) for key, values in one.items()}
    assert all(mine == theirs for mine, theirs in shapes.values()), shapes
    return max(float((one[key] - other[key]).abs().max() / (1 + one[key].abs().max())) for key in one)


def pair(plan: str) -> tuple[nn.Module, nn.Module]:
    """A network that has made a step, and the model in one process, likewise."""
    torch.manual_seed(0)
    model = Model().double()
    net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=PLANS[plan])
    assert largest_error(net, model, 0) < 1e-8
    return net, model


def changed(name: str, plan: str) -> float:
    """The largest error of the steps after a change."""
    net, model = pair(plan)
    for each in (net, model):
        torch.manual_seed(1)
        CHANGES[name].run(each)
    return max(largest_error(net, model, seed) for seed in (2, 4))


def averaged(plan: str) -> float:
    """The largest error of an averaged model whose statistics are computed anew."""
    found = list[torch.Tensor]()
    for net in pair(plan):
        mean = AveragedModel(net)
        step(net, 2)
        mean.update_parameters(net)
        update_bn([batch(seed) + seed for seed in range(3)], mean)
        assert net.bn.momentum == mean.module.bn.momentum == 0.1
        found.append(whole(mean.eval()(batch(9))))
    return float((found[0] - found[1]).abs().max())


def momentum_of_a_copy(plan: str) -> list[float]:
    """A copy and its network have settings of their own. The largest error of each."""
    net, model = pair(plan)
    copied, other = copy.deepcopy(net), copy.deepcopy(model)
    for each in (copied, other):
        each.bn.momentum, each.act.negative_slope = 0.5, 0.9
    return [largest_error(*each, seed) for seed in (2, 4) for each in ((copied, other), (net, model))]


def no_probability() -> str:
    """What a network says of a dropout that drops more than all."""
    net, _ = pair("rows")
    net.drop.p = 1.5
    try:
        net(batch(1))
    except ValueError as error:
        net.drop.p = 0.0
        net(batch(1))
        return str(error)
    return ""
