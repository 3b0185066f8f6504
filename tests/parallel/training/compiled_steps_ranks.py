"""Networks whose steps are compiled, on real ranks, beside the same steps as they are and one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth
from examples.decoders import decoder
from examples.models import CosmoFlow, ResNet
from examples.unet3d import UNet3d
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.comm import traced
from synth.runtime.grid.boxes import volume


class Resized(nn.Module):
    """Maps that are resized in each way."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes = ("bicubic", "bilinear", "area", "nearest-exact")
        for layer, mode in zip(self.layers, modes, strict=True):
            x = layer(nn.functional.interpolate(x, scale_factor=1.5, mode=mode))
        return x


class DrawsNothing(nn.Module):
    """Calls that draw no random numbers, though calls of their names or parts may."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)))
        self.heads = nn.Parameter(torch.rand(3, 4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x) + functional.scaled_dot_product_attention(*self.heads.unbind())
        return x - x.sin().zero_()


class Case(NamedTuple):
    """A small form of a network of the benchmarks. inference: whether only a forward pass runs."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    inference: bool = False


CASES = {
    "resnet50": Case(lambda: ResNet((1, 1, 2, 1), 4, classes=5), (5, 3, 24, 16)),
    "cosmoflow": Case(lambda: CosmoFlow(16, base=2, norms=4), (3, 4, 16, 16, 16)),
    "cosmoflow, one volume": Case(lambda: CosmoFlow(16, base=2, norms=3), (1, 4, 16, 16, 16)),
    "unet3d": Case(lambda: UNet3d(base=2, levels=2), (3, 1, 2, 6, 8)),
    "unet3d, one volume": Case(lambda: UNet3d(base=2, levels=2), (1, 1, 2, 12, 8)),
    "vae decoder": Case(lambda: decoder(2, (4, 8, 8), 1), (1, 4, 1, 6), True),
    "resized": Case(Resized, (5, 3, 4, 6)),
    "draws nothing": Case(DrawsNothing, (5, 3, 4, 6)),
    "wrn50_4": Case(lambda: ResNet((1, 1), 4, 4, 5), (5, 3, 7, 16)),
}


def some_empty(network: Any, training: bool) -> NetworkPlan:
    """Of each three layers, one is on a rank alone; the others are on all ranks."""
    procs = dist.get_world_size()
    even, alone = (
        plan_network(network, NetworkRequest(procs, training=training, balance=each))
        for each in (0.5, float(procs))
    )

    def mixed(name: str) -> Any:
        pairs = enumerate(zip(getattr(even, name), getattr(alone, name), strict=True))
        return tuple(two if place % 3 == 1 else one for place, (one, two) in pairs)

    made = replace(even, placed_grids=mixed("placed_grids"), tilings=mixed("tilings"))
    assert {each.grid.size for each in made.placed_grids} >= {1, procs}
    return made


def networks(name: str, empty: bool) -> tuple[Any, Any, nn.Module]:
    """Compiled, as it is, and in one process. empty: whether some ranks have no words of some layers."""
    torch.manual_seed(0)
    case = CASES[name]
    model = case.make().double()
    options: dict[str, Any] = {"objective": "words"}
    if empty:
        options = {"plan": some_empty(trace_model(model, case.shape).network, not case.inference)}
    mode = "inference" if case.inference else "training"
    options.update(mode=mode, check=False)  # copies of one network would share its counters
    mine, eager = (synth.parallelize(copy.deepcopy(model), case.shape, **options) for _ in range(2))
    return mine, eager, model


def steps(name: str, backend: str, empty: bool = False) -> dict[str, Any]:
    """Distances of outputs, weights and buffers after steps; exchanges, and words that are received."""
    mine, eager, alone = networks(name, empty)
    mine.compile(backend=backend)
    nets, case = (mine, eager, alone), CASES[name]
    log: list[str] = []
    traced.LOG[:] = [log]
    generator = torch.Generator().manual_seed(1)
    found: dict[str, Any] = {"eager": 0.0, "alone": 0.0}
    with torch.set_grad_enabled(not case.inference):
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.02, momentum=0.9) for each in nets]
        for _ in range(2 if case.inference else 3):
            x = torch.randn(case.shape, generator=generator, dtype=torch.float64)
            outs = [whole(each(x)) for each in nets]
            found["alone"] = max(found["alone"], far(outs[0], outs[2]))
            found["eager"] = max(found["eager"], far(outs[0], outs[1]))
            if case.inference:
                continue
            for each, out in zip(optimizers, outs, strict=True):
                each.zero_grad()
                functional.mse_loss(out, torch.ones_like(out)).backward()
                each.step()
    states = [mine.full_state_dict(), eager.full_state_dict(), alone.state_dict()]
    for key, values in states[2].items():
        found["alone"] = max(found["alone"], far(states[0][key], values))
        found["eager"] = max(found["eager"], far(states[0][key], states[1][key]))
    (made,) = mine._compiled.passes.values()
    found["log"] = log == made.names * (len(log) // max(1, len(made.names)))
    found["exchanges"], found["rank"] = [traced.LAYOUTS[each].exchange for each in log], mine.ranks.rank
    found["words"] = mine.received(), eager.received()
    found["empty"] = any(volume(each.mine) == 0 for each in mine.program.layouts.values())
    return found


def whole(out: Any) -> torch.Tensor:
    values: torch.Tensor = out.full_tensor() if hasattr(out, "full_tensor") else out
    return values


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative to the largest word."""
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).abs().max() / max(1.0, float(other.abs().max())))


def elsewhere(replicas: int) -> float:
    """Distance of weights after two steps from those not compiled: in replicas, or with whole outputs."""
    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("a", "b"))
    generator = torch.Generator().manual_seed(mesh.get_local_rank("a"))
    batches, states = torch.randn(2, *SHAPE, generator=generator), []
    where, outputs = (mesh, "partitioned") if replicas > 1 else (mesh["b"], "whole")
    for compiled in (False, True):
        net: Any = synth.parallelize(small(), SHAPE, where, objective="words", check=False, outputs=outputs)
        if compiled:
            net.compile(backend="aot_eager")
        for x in batches:
            net.zero_grad()
            whole(net(x)).square().mean().backward()
            with torch.no_grad():
                for values in net.parameters():
                    values -= 0.1 * values.grad
        states.append(net.full_state_dict())
    return max(far(states[1][name], values) for name, values in states[0].items())


# -- what changes, and what is refused ---------------------------------------------------------------------


def small(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(5)
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), norm, *more, nn.Conv2d(5, 3, 3, padding=1))


class Again(nn.Module):
    """A region that is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(self.body, x, use_reentrant=False)
        return made


def rate_of_batches() -> nn.Module:
    model = small()
    model[1].momentum = None  # statistics are divided by a number of batches that the pass counts
    return model


class Quotients(nn.Module):
    """A map, and whole numbers divided by those of it, of which none is 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 7 // (x * 0 + 2).long()


class Labels(nn.Module):
    """A map, and a loss of labels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        labels = torch.tensor([2, -1, 0, 0, 0, 0, 0, 0]).expand(4, -1)
        return x + nn.functional.multilabel_margin_loss(x[:, 0, 0], labels)


SHAPE = 4, 3, 6, 8
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "drawn whole": lambda: small(nn.RReLU()),
    "words that torch may refuse": lambda: small(Quotients()),
    "compiled wrongly by torch": lambda: small(Labels()),
    "not compiled by torch": lambda: small(nn.CrossMapLRN2d(3)),
    "checkpoint": Again,
    "check_finite": small,
    "no_sync": small,
    "no_sync in the backward pass": small,
    "counted rate": rate_of_batches,
    "dynamic": small,
    "compiled on one rank": small,
}


def refused(what: str) -> tuple[str, float]:
    """What is said of what compiled steps cannot do; and how far the network as it is is from one process."""
    model = REFUSED[what]()
    net: Any = synth.parallelize(
        copy.deepcopy(model), SHAPE, objective="words", check_finite=what == "check_finite", check=False
    )
    x, said = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)), "accepted"
    try:
        alone = what == "compiled on one rank" and dist.get_rank()
        net.compile(backend="aot_eager", dynamic=what == "dynamic", disable=alone)
        with net.no_sync() if what == "no_sync" else nullcontext():
            out = net(x)
        with net.no_sync():
            out.sum().backward()
    except Exception as error:
        said = str(error)
    net.compile(disable=True)
    model.eval(), net.eval()
    net.load_full_state_dict(model.state_dict())
    return said, far(whole(net(x)), model(x))


def changes() -> dict[str, Any]:
    """Distances from one process after changes of modes, settings and shapes; compiled passes."""
    model = small()
    net: Any = synth.parallelize(copy.deepcopy(model), SHAPE, objective="words", check=False)
    net.compile(backend="aot_eager")
    nets, found = (net, model), dict[str, Any]()
    generator = torch.Generator().manual_seed(1)

    def step(what: str, samples: int = 4) -> None:
        x = torch.randn(samples, *SHAPE[1:], generator=generator)
        outs = [whole(each(x)) for each in nets]
        found[what] = far(*outs)
        for each, out in zip(nets, outs, strict=True):
            each.zero_grad()
            if out.requires_grad:
                out.square().mean().backward()
                for name, values in each.named_parameters():
                    if each is model and values.grad is not None:
                        mine = net.get_parameter(name).grad
                        found[what] = max(found[what], far(whole(mine), values.grad))

    step("first")
    for each in nets:
        each.eval()
    step("evaluation")
    for each in nets:
        each.train()
    step("again")
    passes = len(net._compiled.passes)
    for each in nets:
        each[1].momentum = 0.7
    step("momentum")
    for each in nets:
        each[0].weight.requires_grad_(False)
    step("frozen")
    step("fewer samples", 2)
    with torch.no_grad():
        step("no gradients")
    state = net.full_state_dict()
    found["state"] = max(far(state[key], values) for key, values in model.state_dict().items())
    copied = copy.deepcopy(net)
    assert copied._compiled is None
    return {"passes": passes, "far": found}
