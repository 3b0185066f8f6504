"""Compiled steps with dropout, on real ranks, beside the steps as they are."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from compiled_steps_ranks import far, some_empty, whole
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth
from synth.parallel.front_end.trace_model import trace_model

SHAPE = 4, 3, 5, 7


class Dropped(nn.Module):
    """Dropout of words, of channels, in a function, and of a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.drop = nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.Dropout(0.4)
        self.two, self.channels = nn.Conv2d(5, 6, 3, padding=1), nn.Dropout2d(0.5)
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(torch.tanh(self.norm(self.one(x))))
        x = self.channels(self.two(x))
        return functional.dropout(self.last(x.mean((2, 3))), 0.3, self.training)


def networks(empty: bool, mesh: Any = None, backend: str = "aot_eager") -> list[Any]:
    """Compiled, and as it is."""
    torch.manual_seed(0)
    model, options = Dropped().double(), dict[str, Any](objective="words", check=False)
    if empty:
        options["plan"] = some_empty(trace_model(model, SHAPE).network, True)
    mine: Any = synth.parallelize(model, SHAPE, mesh, **options)
    eager = copy.deepcopy(mine)
    mine.compile(backend=backend)
    return [mine, eager]


class Same:
    """How far compiled steps are from the others; `wrong` where they differ at all in what is dropped."""

    def __init__(self, nets: list[Any]) -> None:
        self.nets, self.wrong, self.far = nets, list[str](), 0.0
        self.optimizers = [torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in nets]
        self.outs = dict[str, torch.Tensor]()

    def step(
        self, what: str, seed: int | None, parts: int = 1, twice: bool = False, samples: int = 4
    ) -> None:
        """A step. seed: of torch's generator; None to go on with it. twice: two backward passes."""
        before, found = torch.get_rng_state(), list[Any]()
        for net, optimizer in zip(self.nets, self.optimizers, strict=True):
            torch.set_rng_state(before)
            if seed is not None:
                torch.manual_seed(seed)
            optimizer.zero_grad()
            for part in range(parts):
                shape = samples, *SHAPE[1:]
                x = torch.arange(samples * 105, dtype=torch.float64).sin().reshape(shape).add(part)
                out = net(x.requires_grad_())
                outs = whole(out)
                if outs.requires_grad:
                    for again in reversed(range(1 + twice)):
                        whole(out).square().mean().backward(retain_graph=again > 0)
            grads = [whole(each.grad) for each in (*net.parameters(), x) if each.grad is not None]
            found.append((outs.detach(), [each.clone() for each in grads], torch.get_rng_state()))
            if outs.requires_grad:
                optimizer.step()
        mine, eager = found
        if not torch.equal(mine[0] == 0, eager[0] == 0) or not torch.equal(mine[2], eager[2]):
            self.wrong.append(what)
        self.outs[what] = mine[0]
        pairs = zip((mine[0], *mine[1]), (eager[0], *eager[1]), strict=True)
        self.far = max(self.far, *(far(*pair) for pair in pairs))

    def found(self) -> dict[str, Any]:
        """What was found; and the compiled passes."""
        mine, eager = (each.full_state_dict() for each in self.nets)
        self.far = max(self.far, *(far(mine[key], values) for key, values in eager.items()))
        return {"wrong": self.wrong, "far": self.far, "passes": len(self.nets[0]._compiled.passes)}


def steps(empty: bool, backend: str) -> dict[str, Any]:
    """Steps with other masks in each."""
    seen = Same(networks(empty, backend=backend))
    seen.step("first", 1)
    seen.step("second", None)
    return seen.found()


def in_turn() -> dict[str, Any]:
    """Parts of a batch, two backward passes, another rate, evaluation, another batch; and seeds again."""
    seen = Same(networks(False))
    seen.step("parts", 1, parts=2)
    seen.step("twice", None, twice=True)
    for net in seen.nets:
        net.drop.p = 0.1
    seen.step("another rate", None)
    for net in seen.nets:
        net.channels.p, net.drop.p = 0.0, 1.0
    seen.step("all", None)
    for net in seen.nets:
        net.channels.p, net.drop.p = 0.5, 0.4
        net.eval()
    seen.step("evaluation", None)
    for net in seen.nets:
        net.train(), net.one.requires_grad_(False)
    seen.step("frozen", None)
    seen.step("another batch", None, samples=3)
    passes = len(seen.nets[0]._compiled.passes)
    with torch.no_grad():
        for name, seed in (("one", 5), ("two", 6), ("one again", 5)):
            seen.step(name, seed)
    outs = seen.outs
    again = torch.equal(outs["one"], outs["one again"]) and not torch.equal(outs["one"], outs["two"])
    return {**seen.found(), "again": again, "more": len(seen.nets[0]._compiled.passes) - passes}


def in_replicas() -> dict[str, Any]:
    """Two replicas, each with masks of its own."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("a", "b"))
    seen = Same(networks(False, mesh))
    seen.step("first", 1)
    return seen.found()


class Again(nn.Module):
    """A layer of the user, and a network in a checkpoint of the user's."""

    def __init__(self, net: nn.Module, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net, self.reentrant, self.scale = net, reentrant, nn.Parameter(torch.ones(()).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(self.net, x * self.scale, use_reentrant=self.reentrant)
        return made

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Of the network."""
        net: Any = self.net
        found: dict[str, torch.Tensor] = net.full_state_dict()
        return found


def in_checkpoints(reentrant: bool) -> dict[str, Any]:
    """A checkpoint of the user around the network."""
    mine, eager = networks(True)
    seen = Same([Again(mine, reentrant), Again(eager, reentrant)])
    seen.step("first", 1)
    seen.step("second", None)
    return {"wrong": seen.wrong, "far": seen.far}
