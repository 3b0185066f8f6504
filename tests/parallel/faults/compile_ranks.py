"""torch.compile before and around networks, on real ranks beside one process."""

from __future__ import annotations

import copy
import dataclasses
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
    "of labels": lambda y, x: y.mean() * y.argmax(1).max(),
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


# -- a network with whole outputs is one operator of the graph ----------------------------------------------


@dataclasses.dataclass
class Both:
    """Outputs as libraries have them."""

    last: torch.Tensor
    first: torch.Tensor
    none: torch.Tensor | None = None


class Several(nn.Module):
    """A network with two inputs and several outputs, in a tuple, a dict, or a list with a dict in it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, factor: float = 2.0) -> Any:
        z = torch.tanh(self.first(x + y * factor))
        made = self.last(z), z
        if self.kind == "list":
            return [{"last": made[0], "none": None}, (made[1], made[0]), Both(*made)]
        return made if self.kind == "tuple" else {"last": made[0], "first": made[1]}


class Joined(nn.Module):
    """Two calls of networks, whose outputs meet."""

    def __init__(self, one: Any, several: Any) -> None:
        super().__init__()
        self.one, self.several, self.scale = one, several, nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.several(self.one(x * self.scale + 1), y=x)
        if isinstance(made, list):
            made = {**made[0], "first": made[2].first if made[2].none is None else made[1][0]}
        last, first = made if isinstance(made, tuple) else (made["last"], made["first"])
        return functional.mse_loss(last, x) + first.square().mean() + self.one(x).mean()


def _whole_networks(kind: str) -> tuple[Joined, Joined]:
    torch.manual_seed(1)
    several = Several(kind)
    right = Joined(model(), several)
    copies = copy.deepcopy(right)
    one = synth.parallelize(copies.one, SHAPE, objective="words", outputs="whole")
    both = synth.parallelize(copies.several, (SHAPE, SHAPE), objective="words", outputs="whole")
    mine = Joined(one, both)
    mine.scale.data = right.scale.data.clone()
    return mine, right


def one_operator(kind: str, backend: str = "aot_eager") -> dict[str, float]:
    """Steps under `fullgraph=True`: distances of losses and weights from one process, and graph breaks."""
    mine, right = _whole_networks(kind)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = torch.compile(mine, backend=backend, fullgraph=True)
    x, found = batch(), dict[str, float]()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (mine, right)]
    for number in range(3):
        for each in (mine, right):
            each.zero_grad()
        losses = step(x), right(x)
        found[f"loss {number}"] = float((losses[0] - losses[1]).detach().abs())
        for loss in losses:
            loss.backward()
        for each in optimizers:
            each.step()
    for name in ("one", "several"):
        state = getattr(mine, name).full_state_dict()
        wanted = getattr(right, name).state_dict()
        found[name] = max(float((state[key] - each).abs().max()) for key, each in wanted.items())
    found["scale"] = float((mine.scale - right.scale).detach().abs())
    mine.eval(), right.eval()
    with torch.no_grad():
        found["evaluation"] = float((step(x) - right(x)).abs())
    found["breaks"] = breaks()
    return found


class Unused(nn.Module):
    """A network with two inputs, of which a loss uses the output of one."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.one, self.two = body, nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, _ = self.body(self.one(x), self.two(x))
        loss: torch.Tensor = first.square().mean()
        return loss


class Apart(nn.Module):
    """Two heads, the second one of both inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.last(x + y)


def unused(several: bool) -> tuple[list[str], float]:
    """The parameters without a gradient behind a step under `fullgraph=True`; distances of the others.

    several: whether another network gives the input.
    """
    torch.manual_seed(2)
    right = Unused(Apart())
    mine: Any = copy.deepcopy(right)
    mine.body = synth.parallelize(mine.body, (SHAPE, SHAPE), objective="words", outputs="whole")
    if several:
        mine.two = synth.parallelize(mine.two, SHAPE, objective="words", outputs="whole")
    torch._dynamo.reset()
    torch.compile(mine, backend="aot_eager", fullgraph=True)(batch()).backward()
    right(batch()).backward()
    grads = {name: each.grad for name, each in right.named_parameters()}
    pairs = [(name, each.grad, grads[name]) for name, each in mine.named_parameters()]
    far = max(float((whole(a) - b).abs().max()) for _, a, b in pairs if a is not None and b is not None)
    assert all((a is None) == (b is None) for _, a, b in pairs), [(n, a is None) for n, a, _ in pairs]
    return [name for name, a, _ in pairs if a is None], far


def whole_but(what: str) -> str:
    """What is said of what one operator cannot do; the network works afterwards."""
    net: Any = synth.parallelize(model(), SHAPE, objective="words", outputs="whole")
    torch._dynamo.reset()
    step = torch.compile(net, backend="aot_eager", fullgraph=True)
    x, said = batch(), "accepted"
    try:
        if what == "another shape":
            step(x[:2])
        elif what == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                step(x)
        elif what == "a second backward pass":
            out = step(x).sum()
            out.backward(retain_graph=True)
            out.backward()
        elif what == "a shape that was called before":
            net(x[:2])
            step(x[:2]).sum().backward()
    except Exception as error:  # Dynamo's own class among them
        said = str(error)
    torch._dynamo.reset()
    wanted = model().eval()
    net.load_full_state_dict(wanted.state_dict())
    net.eval()
    assert float((step(x) - wanted(x)).detach().abs().max()) < 1e-5
    return said


class Chosen(nn.Module):
    """A model with values among its arguments, and another graph in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)

    def forward(
        self, x: torch.Tensor, mask: Any = None, gain: float = 1.0, *, cut: bool = False
    ) -> torch.Tensor:
        y = self.first(x) * gain
        y = y if mask is None else y * mask
        if self.first.training:
            y = self.first(x) - y
        out: torch.Tensor = self.last(y.relu() if cut else y)
        return out


def by_values(gain: float) -> dict[str, str | float]:
    """What compiled calls with values give: the distance from one process, or what is said."""
    right = Chosen().eval()
    asked = {} if gain == 1 else {"gain": gain}
    net: Any = synth.parallelize(Chosen().eval(), synth.Inputs(SHAPE, **asked), outputs="whole")
    x, found = batch(), dict[str, str | float]()
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "all": ((x, None, gain), {"cut": False}),
        "named": ((), {"gain": gain, "x": x}),
        "alone": ((x,), {}),
        "another": ((x, None, gain + 1), {}),
        "a flag": ((x, None, gain), {"cut": True}),
        "a tensor": ((x, x[:, :1], gain), {}),
        "too many": ((x, None, gain, False), {}),
    }
    torch._dynamo.reset()
    step = torch.compile(lambda *args, **kwargs: net(*args, **kwargs), backend="aot_eager", fullgraph=True)

    def of(name: str) -> None:
        args, kwargs = calls[name]
        try:
            with torch.no_grad():
                found[name] = float((step(*args, **kwargs) - right(*args, **kwargs)).abs().max())
        except Exception as error:  # Dynamo's own class among them
            found[name] = str(error)

    for name in calls:
        of(name)
    net.train()
    of("all")
    found["in training"] = found.pop("all")
    net.eval()
    net.first.train()
    of("all")
    found["a part in training"] = found.pop("all")
    net.eval()
    of("all")
    return found
