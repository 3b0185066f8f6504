"""torch.compile before and around networks, on real ranks beside one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import synth

SHAPE = 4, 3, 8, 8
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 3, 3, padding=1)
    )


def whole(out: Any) -> torch.Tensor:
    values: torch.Tensor = out.full_tensor() if hasattr(out, "full_tensor") else out
    return values


def batch() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


def under_autocast(y: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss: torch.Tensor = (y.relu() - x).abs().mean()
        return loss


LOSSES: dict[str, Loss] = {
    "of outputs": lambda y, x: functional.mse_loss(y, x),
    "of wholes": lambda y, x: functional.mse_loss(whole(y), x),
    "of sums": lambda y, x: (y * y).sum() / 100 + y.pow(2).mean(),
    "of channels": lambda y, x: torch.softmax(y, 1)[:, 0].mean(),
    "under autocast": under_autocast,
}


class Around(nn.Module):
    """A module that calls another one and computes a loss, as users compile it."""

    def __init__(self, body: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.body, self.loss = body, loss
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.body(x + 1), x) * self.scale


def compiled(made: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(made, backend="aot_eager", **options)


def breaks() -> int:
    """Graph breaks since something was compiled."""
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def distance(mine: nn.Module, right: nn.Module) -> float:
    """Of all gradients."""
    grads = {name: each.grad for name, each in right.named_parameters()}
    pairs = [(each.grad, grads[name]) for name, each in mine.named_parameters()]
    assert all(a is not None and b is not None for a, b in pairs)
    return max(float((whole(a) - b).abs().max()) for a, b in pairs if b is not None)


def around(name: str) -> tuple[float, float, int]:
    """Distances of a loss and of gradients from one process, and the breaks of one call."""
    loss = LOSSES[name]
    right = Around(model(), loss)
    mine = Around(synth.parallelize(model(), SHAPE, objective="words"), loss)
    made, x = compiled(mine), batch()
    far = float((made(x) - right(x)).detach().abs())
    mine.zero_grad(), right.zero_grad()
    first = breaks()
    made(x).backward(), right(x).backward()
    assert breaks() == first  # nothing is compiled again
    return far, distance(mine, right), first


def network(how: str) -> tuple[float, float, int]:
    """The same of a network that is compiled itself, or made of a compiled model."""
    given, right, x = model(), model(), batch()
    torch._dynamo.reset()
    if how == "model":
        given = torch.compile(given, backend="aot_eager")
    if how == "model in place":
        given.compile(backend="aot_eager")
    mine: Any = synth.parallelize(given, SHAPE, objective="words")
    assert [name for name, _ in mine.named_parameters()] == [name for name, _ in right.named_parameters()]
    torch._dynamo.utils.counters.clear()
    made = mine
    if how == "network":
        made = compiled(mine)
    if how == "network in place":
        mine.compile(backend="aot_eager")
    out = made(x)
    far = float((whole(out) - right(x)).detach().abs().max())
    mine.zero_grad(), right.zero_grad()
    functional.mse_loss(made(x), x).backward()
    functional.mse_loss(right(x), x).backward()
    return far, distance(mine, right), breaks()


def optimizer(name: str) -> float:
    """The distance of parameters after compiled steps of an optimizer."""
    mine, right, x = synth.parallelize(model(), SHAPE, objective="words"), model(), batch()
    pair = [getattr(torch.optim, name)(each.parameters(), lr=0.01) for each in (mine, right)]
    step = compiled(pair[0].step)
    for _ in range(3):
        for net, each in zip((mine, right), (step, pair[1].step), strict=True):
            net.zero_grad()
            functional.mse_loss(net(x), x).backward()
            each()
    state = mine.full_state_dict()
    return max(float((state[n] - v).detach().abs().max()) for n, v in right.named_parameters())


def full_graph() -> tuple[str, float]:
    """What is said of `fullgraph=True`, and how far the network is from one process afterwards."""
    mine, x = synth.parallelize(model(), SHAPE, objective="words"), batch()
    said = "accepted"
    try:
        compiled(Around(mine, LOSSES["of outputs"]), fullgraph=True)(x)
    except Exception as error:  # Dynamo's own class
        said = str(error)
    return said, float((whole(mine(x)) - model()(x)).detach().abs().max())


def planned() -> bool:
    """Whether a plan and a check of a compiled model are those of the model."""
    plain = synth.plan_model(model(), SHAPE, 4)
    wrapped = synth.plan_model(torch.compile(copy.deepcopy(model())), SHAPE, 4)
    return plain.words == wrapped.words and not synth.check(torch.compile(model()), SHAPE).reason
