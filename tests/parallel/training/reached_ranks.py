"""Losses that reach some outputs of a network alone, on real ranks, beside one process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth

SHAPE = (4, 3, 6, 8)
REACHED = [(0,), (1,), (2,), (0, 2), (0, 1, 2)]  # outputs, by step


class Ends(nn.Module):
    """Three outputs, each by layers of its own, from one or two inputs. region: computed again."""

    def __init__(self, region: bool) -> None:
        super().__init__()
        self.region, self.stem = region, nn.Conv2d(3, 4, 3, padding=1)
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second, self.batch = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.third, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def ends(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        third = self.third(x.mean((2, 3))) * self.scale
        return self.norm(self.first(x)), self.batch(self.second(self.stem(y))), third

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = functional.relu(self.stem(x))
        if self.region:
            made: tuple[torch.Tensor, ...] = checkpoint(self.ends, x, y, use_reentrant=False)
            return made
        return self.ends(x, y)


class Slices(Ends):
    """Slices of what two layers and an input are joined to: each reads one of them alone."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, _ = self.ends(functional.relu(self.stem(x)), y)
        joined = torch.cat([first, second, y], 1)
        return joined[:, :4], torch.tanh(joined)[:, 4:8].flip(3), joined.narrow(1, 8, 2)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "region": lambda: Ends(True),
    "plain": lambda: Ends(False),
    "slices": lambda: Slices(False),
}


def steps(plan: Any, kind: str) -> dict[str, float]:
    """Distances of gradients and weights from one process by step; infinite where one alone is None."""
    torch.manual_seed(0)
    whole = KINDS[kind]().double()
    net: Any = synth.parallelize(copy.deepcopy(whole), (SHAPE, SHAPE), plan=plan, check=False)
    nets, found = (net, whole), dict[str, float]()
    optimizers = [torch.optim.SGD(e.parameters(), 0.05, momentum=0.9, weight_decay=0.1) for e in nets]
    generator = torch.Generator().manual_seed(1)
    for reached in REACHED:
        batch = torch.randn(2, *SHAPE, generator=generator, dtype=torch.float64)
        grads = []
        for each, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            inputs = [part.clone().requires_grad_() for part in batch]
            outs = each(*inputs)
            torch.stack([outs[place].square().mean() for place in reached]).sum().backward()
            grads.append([values.grad for values in (*each.parameters(), *inputs)])
            optimizer.step()
        found[f"{reached}"] = max(map(far, *grads))
    state = net.full_state_dict()
    found["state"] = max(far(state[key], values) for key, values in whole.state_dict().items())
    return found


def far(one: Any, other: Any) -> float:
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    one = one.full_tensor() if hasattr(one, "full_tensor") else one
    return float((one - other).abs().max())


def apart(replicas: int) -> str:
    """What is said where rank 1, or replica 1, reaches another output, or one more."""
    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("a", "b"))
    net: Any = synth.parallelize(
        Both(), SHAPE, mesh if replicas > 1 else None, objective="words", check=False
    )
    outs, first = net(torch.ones(SHAPE)), int(dist.get_rank() == 1 and replicas > 1)
    reached = [outs[first], *outs[1 : dist.get_rank() + 1]]
    return refusal(lambda: torch.autograd.backward(reached, [torch.ones(SHAPE)] * len(reached)))


def chosen_by_rank() -> str:
    """What is said of ranks that compute the same from different outputs."""
    net: Any = synth.parallelize(Both(), SHAPE, objective="words", check=False)
    chosen = net(torch.ones(SHAPE))[dist.get_rank() % 2]
    return refusal(lambda: chosen.square().mean().backward())


def refusal(run: Callable[[], Any]) -> str:
    try:
        run()
    except RuntimeError as error:
        return str(error)
    return ""


class Both(nn.Module):
    """Two outputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.two(x)


def networks_of_one_model() -> dict[str, int]:
    """How often the second network warns: after no step, after one, again, with the words taken, trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)).eval()

    def made(mode: str) -> Any:
        return synth.parallelize(model, SHAPE, objective="words", check=False, mode=mode)

    train, *others = map(made, ("training", "inference", "inference", "training"))
    images, found = torch.randn(*SHAPE), dict[str, int]()

    def said(name: str, network: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            network(images)
        found[name] = sum("another network of the same model" in str(each.message) for each in caught)

    said("before", others[0])
    optimizer = torch.optim.SGD(train.parameters(), lr=0.1)
    train(images).square().sum().backward()
    optimizer.step()
    said("after", others[0])
    said("again", others[0])
    others[1].load_state_dict(train.state_dict())
    said("taken", others[1])
    said("the trained one", train)
    said("another one in training", others[2])
    said("made later", made("inference"))
    with torch.no_grad():
        model[0].weight.add_(0.0)
    said("made of changed values", made("inference"))
    return found


def layer_of_two_models() -> list[str]:
    """What is said of another network with a layer of the first: trained, copied, frozen, after it."""
    shared = nn.Conv2d(3, 3, 3, padding=1)
    first, second = nn.Sequential(shared), nn.Sequential(nn.ReLU(), shared)
    made: list[Any] = [synth.parallelize(first, SHAPE, objective="words", check=False)]

    def parallelize(model: nn.Module) -> str:
        try:
            synth.parallelize(model, SHAPE, objective="words", check=False)
        except ValueError as error:
            return str(error)
        return ""

    said = [parallelize(second), parallelize(copy.deepcopy(second)), parallelize(first)]
    shared.requires_grad_(False)
    said.append(parallelize(second))
    shared.requires_grad_(True)
    made.clear()
    return [*said, parallelize(nn.Sequential(shared, nn.Tanh()))]
