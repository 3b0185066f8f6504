"""What is changed in place between a forward and a backward pass, on ranks and in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn

import synth

SHAPE = (4, 4, 8, 8)
Change = Callable[[nn.Module, Any], Any]


class Views(nn.Module):
    """Its first layer reads a view of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.permute(0, 2, 1, 3))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """Its first layer reads a tensor that it made of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x * 2 - 1)  # type: ignore[no-any-return]


def two_layers(middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), middle, nn.Conv2d(8, 4, 3, padding=1))


def stepped(model: nn.Module, _: Any, **how: bool) -> None:
    """An optimizer's step."""
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    torch.optim.SGD(model.parameters(), lr=0.5, **how).step()
    model.zero_grad()


def loaded(model: nn.Module, _: Any) -> None:
    """A state of other values."""
    model.load_state_dict({key: values + 1 for key, values in whole_state(model).items()})


def whole_state(model: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = getattr(model, "full_state_dict", model.state_dict)()
    return {key: values.clone() for key, values in state.items()}


def added(name: str) -> Change:
    """A parameter changed under no_grad."""

    def change(model: nn.Module, _: Any) -> None:
        with torch.no_grad():
            dict(model.named_parameters())[name].add_(1.0)

    return change


def zeroed(_: nn.Module, batch: Any) -> None:
    batch.zero_()


def sample_zeroed(_: nn.Module, batch: Any) -> None:
    batch[1].zero_()


def detached_zeroed(_: nn.Module, batch: Any) -> None:
    batch.detach().mul_(0.0)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: two_layers(nn.Tanh()),
    "batch norm": lambda: two_layers(nn.BatchNorm2d(8)),
    "group norm": lambda: two_layers(nn.GroupNorm(2, 8)),
    "one layer": lambda: nn.Conv2d(4, 8, 3, padding=1),
    "one linear layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 8)),
    "two linear layers": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Tanh(), nn.Linear(8, 4)),
    "views": Views,
    "scaled": Scaled,
    "to tanh": lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Tanh()),
}
# a model, what changes, whether the batch is scattered before
CASES: dict[str, tuple[str, Change, bool]] = {
    "an optimizer's step": ("tanh", stepped, False),
    "a step on lists": ("tanh", partial(stepped, foreach=True), False),
    "a step behind batch norm": ("batch norm", stepped, False),
    "a step of the only layer": ("one layer", stepped, False),
    "a step of the only linear layer": ("one linear layer", stepped, False),
    "a step of linear layers": ("two linear layers", stepped, False),
    "the first linear weight": ("two linear layers", added("1.weight"), False),
    "the last linear weight": ("two linear layers", added("3.weight"), False),
    "a batch of linear layers": ("two linear layers", zeroed, False),
    "a scattered batch of linear layers": ("two linear layers", zeroed, True),
    "load_state_dict": ("tanh", loaded, False),
    "the first weight": ("tanh", added("0.weight"), False),
    "the first bias": ("tanh", added("0.bias"), False),
    "the last weight": ("tanh", added("2.weight"), False),
    "the last bias": ("tanh", added("2.bias"), False),
    "a scale of batch norm": ("batch norm", added("1.weight"), False),
    "a shift of batch norm": ("batch norm", added("1.bias"), False),
    "a scale of group norm": ("group norm", added("1.weight"), False),
    "a batch": ("tanh", zeroed, False),
    "a scattered batch": ("tanh", zeroed, True),
    "a sample": ("tanh", sample_zeroed, False),
    "a sample of a scattered batch": ("one layer", sample_zeroed, True),
    "a detached batch": ("tanh", detached_zeroed, False),
    "a detached scattered batch": ("tanh", detached_zeroed, True),
    "a batch that is read by a view": ("views", zeroed, False),
    "a scattered batch that is read by a view": ("views", zeroed, True),
    "a batch of which another tensor is made": ("scaled", zeroed, False),
    "a scattered batch of which another is made": ("scaled", zeroed, True),
    "nothing": ("tanh", lambda model, batch: None, False),
}


def outcome(model: Any, change: Change, batch: Any, trained: bool) -> tuple[str, list[torch.Tensor]]:
    """What the backward pass says, and its gradients."""
    if not trained:
        next(iter(model.parameters())).requires_grad_(False)
    loss = model(batch).square().mean()
    change(model, batch)
    try:
        loss.backward()
    except RuntimeError as fault:
        return str(fault), []
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return "", [getattr(each, "full_tensor", each.clone)() for each in found]


def case(name: str, plan: Any, trained: bool = True) -> tuple[str, bool, float]:
    """(what ranks say, whether one process refuses, how far the gradients are apart)."""
    kind, change, scattered = CASES[name]
    torch.manual_seed(0)
    whole = MODELS[kind]().double()
    net: Any = synth.parallelize(copy.deepcopy(whole), SHAPE, plan=plan)
    batch = torch.randn(SHAPE, dtype=torch.float64)
    given = net.scatter(batch, like="input") if scattered else batch.clone()
    said, mine = outcome(net, change, given, trained)
    refused, its = outcome(whole, change, batch.clone(), trained)
    apart = max((float((a - b).abs().max()) for a, b in zip(mine, its, strict=False)), default=0.0)
    again = net(torch.ones(SHAPE, dtype=torch.float64)).sum()  # the network stays usable
    again.backward()
    return said, bool(refused), apart


def cases(plan: Any, trained: bool = True) -> dict[str, tuple[str, bool, float]]:
    """All of them."""
    return {name: case(name, plan, trained) for name in CASES}


def own_part(plan: Any) -> str:
    """The own part of a batch, written by to_local()."""
    net: Any = synth.parallelize(two_layers(nn.Tanh()).double(), SHAPE, plan=plan)
    batch = net.scatter(torch.randn(SHAPE, dtype=torch.float64), like="input")
    loss = net(batch).square().mean()
    batch.to_local().zero_()
    try:
        loss.backward()
    except RuntimeError as fault:
        return str(fault)
    return ""


def output(plan: Any, kind: str) -> tuple[str, bool, float]:
    """An output that is changed in place, which the last layer has saved or not."""
    torch.manual_seed(0)
    whole = MODELS[kind]().double()
    net: Any = synth.parallelize(copy.deepcopy(whole), SHAPE, plan=plan)
    said, found = [], []
    for model in (net, whole):
        out = model(torch.ones(SHAPE, dtype=torch.float64))
        out[1:3].mul_(2.0)
        try:
            out.square().mean().backward()
            said.append("")
        except RuntimeError as fault:
            said.append(str(fault))
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([getattr(each, "full_tensor", each.clone)() for each in grads])
    apart = max((float((a - b).abs().max()) for a, b in zip(*found, strict=True)), default=0.0)
    return said[0], bool(said[1]), apart


def scattered_views(plan: Any) -> float:
    """How far a scattered batch moves with the tensor that it was made of."""
    net: Any = synth.parallelize(two_layers(nn.Tanh()).double(), SHAPE, plan=plan)
    batch = torch.ones(SHAPE, dtype=torch.float64)
    own = net.scatter(batch, like="input")
    batch.zero_()
    return float((own.full_tensor() - 1).abs().max())


def twice(plan: Any) -> list[str]:
    """A second backward pass over one graph, behind a step; and in a checkpoint."""
    said = []
    net: Any = synth.parallelize(two_layers(nn.Tanh()).double(), SHAPE, plan=plan)
    loss = fn.mse_loss(net(torch.ones(SHAPE, dtype=torch.float64)), torch.zeros(SHAPE, dtype=torch.float64))
    for change in (False, True):
        if change:
            stepped(net, None)
        try:
            loss.backward(retain_graph=True)
            said.append("")
        except RuntimeError as fault:
            said.append(str(fault))
    return said


def by_data(plan: Any, name: str) -> list[str]:
    """Words of a parameter that are changed by its data, of which torch counts nothing, or are replaced."""
    said = []
    for change in (lambda p: p.data.clamp_(-0.01, 0.01), lambda p: setattr(p, "data", p.data * 0.5)):
        net: Any = synth.parallelize(two_layers(nn.Tanh()).double(), SHAPE, plan=plan)
        loss = net(torch.ones(SHAPE, dtype=torch.float64)).square().mean()
        change(dict(net.named_parameters())[name])
        try:
            loss.backward()
            said.append("")
        except RuntimeError as fault:
            said.append(str(fault))
    return said
