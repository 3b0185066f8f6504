"""Networks whose ranks compute rows of others, on real ranks, beside one process."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from drawn_plans import drawn_model, drawn_plan
from shared_plan import shared_plan
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import synth
from synth.base.errors import SynthError
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_json import to_json
from synth.parallel.first_rank import from_first
from synth.runtime.grid.ranks import Ranks


def compared(seed: int, dims: int, shuffles: bool, selects: bool) -> dict[str, Any]:
    """A random network on random margins: the difference from one process, words counted and planned."""
    rng = random.Random(seed)
    model, shape = drawn_model(rng, dims, shuffles=shuffles, selects=selects)
    procs = dist.get_world_size()
    plan = from_first(lambda: drawn_plan(model, shape, procs, rng)[1], Ranks.world())
    net = synth.parallelize(model, shape, plan=plan, mode="inference", check=False)
    return {"seed": seed, **beside(net, model, shape), **of_margins(plan)}


def of_margins(plan: NetworkPlan) -> dict[str, int]:
    """Tensors of which ranks compute rows of others, and planned words of fetched rows."""
    margins = plan.margins
    if margins is None:
        return {"margins": 0, "fetched": 0}
    return {"margins": sum(any(rows) for rows in margins.rows.values()), "fetched": margins.cost}


def several(
    seeds: list[int], dims: int, shuffles: bool = False, selects: bool = False
) -> list[dict[str, Any]]:
    """Some networks, one after another."""
    return [compared(seed, dims, shuffles, selects) for seed in seeds]


def trained(seed: int, dims: int, shuffles: bool, selects: bool) -> dict[str, Any]:
    """A training step of a random network on random margins: values and gradients, words of both passes."""
    rng = random.Random(seed)
    model, shape = drawn_model(rng, dims, shuffles=shuffles, selects=selects)
    model.train()
    procs = dist.get_world_size()
    plan = from_first(lambda: drawn_plan(model, shape, procs, rng, training=True)[1], Ranks.world())
    net = synth.parallelize(model, shape, plan=plan, check=False, input_gradient=True)
    return {"seed": seed, **step_beside(net, model, shape), **of_margins(plan)}


def several_trained(
    seeds: list[int], dims: int, shuffles: bool = False, selects: bool = False
) -> list[dict[str, Any]]:
    """Some networks, one after another."""
    return [trained(seed, dims, shuffles, selects) for seed in seeds]


def step_beside(net: Any, model: nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    """The largest differences of a step from one process, and its words, counted and planned."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=draw).double().requires_grad_()
    y = x.detach().clone().requires_grad_()
    expected = _listed(model(x))
    weights = [torch.randn(each.shape, generator=draw).double() for each in expected]
    sum(((w * each).sum() for w, each in zip(weights, expected, strict=True)), torch.zeros(())).backward()
    before = net.received()
    found = _listed(net(y))
    forward = net.received() - before
    losses = [(w * each).sum() for w, each in zip(weights, found, strict=True)]
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    total.backward()
    words = net.planned_words(input_gradient=True)
    rank = dist.get_rank()
    theirs, state = dict(net.named_parameters()), net.full_state_dict()
    return {
        "state": max([_apart(own, state[name]) for name, own in model.named_buffers()], default=0.0),
        "value": max(map(_apart, expected, (each.full_tensor() for each in found))),
        "gradient": max(_apart(p.grad, theirs[n].grad.full_tensor()) for n, p in model.named_parameters()),
        "input": 0.0 if y.grad is None else _apart(x.grad, y.grad),
        "counted": [forward, net.received() - before - forward],
        "planned": [words.forward[rank], words.backward[rank]],
    }


def _apart(one: Any, other: Any) -> float:
    if one is None:
        return 0.0
    return float((one - other).abs().max()) / max(1.0, float(one.abs().max()))


def beside(net: Any, model: nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    """The largest difference from one process in two passes, and the words of a pass, counted and planned."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        expected = model(x)
        net(x)
        before = net.received()
        found = net(x)
    pairs = zip(_listed(expected), _listed(found), strict=True)
    apart = (
        float((got.full_tensor() - one).abs().max() / one.abs().max().clamp(min=1)) for one, got in pairs
    )
    words = net.planned_words().forward
    return {
        "error": max(apart),
        "counted": net.received() - before,
        "planned": words[dist.get_rank()],
        "most": max(words),
    }


def _listed(values: Any) -> tuple[Any, ...]:
    return (values,) if isinstance(values, torch.Tensor) else tuple(values)


MACHINE = """
machine: slow
levels: [{name: all, alpha: 1e-4, beta: 1e-10}]
compute: {rate: 1e9, bandwidth: 1e11}
"""
TIMED = {"objective": "time", "axes": "h"}  # on which margins pay


class Block(nn.Module):
    """Norms, convolutions with a skip, and a gate on each channel where asked."""

    def __init__(self, before: int, after: int, gate: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(2, before), nn.InstanceNorm2d(after, affine=True)
        self.short, self.gate = nn.Conv2d(before, after, 1), nn.Conv2d(after, after, 1) if gate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.two(nn.functional.silu(self.norm2(self.one(nn.functional.silu(self.norm1(x))))))
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return self.short(x) + y * 0.5


class Decoder(nn.Module):
    """A U-Net with attention, strides, dilation, shared and functional weights, and a global pooling."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        w = width
        self.first, self.down = nn.Conv2d(3, w, 3, padding="same"), nn.Conv2d(w, w, 3, 2, 1)
        self.a, self.b, self.c = Block(w, w), Block(w, 2 * w, gate=True), Block(3 * w, w)
        self.batch, self.slope = nn.BatchNorm2d(w), nn.PReLU(w)
        self.pool, self.up = nn.MaxPool2d(3, 2, 1), nn.ConvTranspose2d(2 * w, 2 * w, 4, 2, 1)
        self.nearest, self.linear = nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear")
        self.wide = nn.Conv2d(w, w, 3, padding=2, dilation=2, padding_mode="reflect", groups=2)
        self.last, self.head = nn.Conv2d(2 * w, 3, 3, padding=1), nn.Linear(w, 5)
        self.qkv = nn.Conv2d(2 * w, 6 * w, 1)
        with torch.no_grad():
            self.batch.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
            self.batch.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, c, h * w).transpose(-1, -2).unbind(1)
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + found.transpose(-1, -2).reshape(b, c, h, w)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.slope(self.batch(self.first(x * 2 - 1)))
        skip = self.a(self.down(x))
        low = self.attention(self.b(self.pool(skip)))
        y = self.c(torch.cat([skip, self.up(low)], 1))
        y = nn.functional.conv2d(y, self.a.one.weight, padding=1)
        y = self.wide(self.linear(y)) + self.nearest(skip)
        return self.last(torch.cat([y, x], 1)), self.head(y.mean((2, 3)))


def decoder(width: int = 4) -> nn.Module:
    """The same on all ranks."""
    torch.manual_seed(0)
    return Decoder(width).double().eval()


def whole_model(recompute: float, folder: str) -> dict[str, Any]:
    """A model with calls of all kinds, planned here, and by the file of its plan."""
    model, shape = decoder(), (1, 3, 48, 36)
    net = synth.parallelize(model, shape, mode="inference", recompute=recompute, check=True)
    found = beside(net, model, shape)
    plan = shared_plan(model, shape, mode="inference", recompute=recompute)
    path = Path(folder) / f"plan-{dist.get_rank()}.json"
    path.write_text(json.dumps(to_json(plan)))
    other = synth.parallelize(model, shape, plan=path, mode="inference", check=False)
    return {
        **found,
        "by_file": beside(other, model, shape),
        "cost": plan.cost,
        "margins": plan.margins is not None,
        "memory": plan.memory.most,
    }


def other_plans(folder: str) -> dict[str, dict[str, Any]]:
    """Plans for time, one of them from a file, and a plan in less memory than the widest margins take."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(8 if place else 1, 8, 3, padding=1) for place in range(5)]
    model = nn.Sequential(*layers, nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2)).double().eval()
    shape, procs = (1, 1, 64, 60), dist.get_world_size()
    infer = partial(synth.parallelize, model, shape, mode="inference", check=False)

    def make(**options: Any) -> Any:
        asked = partial(synth.plan_model, model, shape, procs, mode="inference", axes="h")
        return from_first(partial(asked, **options), Ranks.world())

    slow = Path(folder) / f"slow-{dist.get_rank()}.yaml"
    slow.write_text(MACHINE)
    timed, free = make(objective="time", machine=slow, recompute=0.5), make(recompute=0.5)
    path = Path(folder) / f"timed-{dist.get_rank()}.json"
    path.write_text(json.dumps(to_json(timed)))
    limit = free.held_bytes - 1
    within = make(recompute=0.5, memory=limit)
    nets = {
        "timed": infer(plan=timed),
        "by_file": infer(plan=path),
        "within": infer(plan=within),
    }
    plans = {"timed": timed, "by_file": timed, "within": within}
    found = {name: beside(net, model, shape) for name, net in nets.items()}
    for name, plan in plans.items():
        rows = plan.margins.rows if plan.margins else {}
        found[name]["margins"] = sum(map(any, rows.values()))
    found["within"] |= {"held": within.held_bytes, "limit": limit}
    return found


class Trained(nn.Module):
    """A decoder with dropout, batch normalization, and a checkpoint where asked."""

    def __init__(self, drop: float = 0.0, checkpointed: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.a, self.b, self.up = Block(4, 4), Block(4, 4), nn.Upsample(scale_factor=2)
        self.drop, self.batch, self.last = nn.Dropout(drop), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3, padding=1)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.second(nn.functional.silu(self.first(x))))
        y = checkpoint(self.a, x, use_reentrant=False) if self.checkpointed else self.a(x)
        z = self.batch(self.b(self.up(y)))
        return self.last(nn.functional.dropout(nn.functional.silu(z), self.drop.p, self.training))


def trainable(**options: Any) -> nn.Module:
    """The same on all ranks."""
    torch.manual_seed(0)
    return Trained(**options).double()


# one after the other: the limit of `within` is that of `local`, a file has the plan before it
STEPS = {
    "words": (("plain", False), ("local", False), ("within", False)),
    "checkpoints": (("checkpointed", True), ("by_file", True)),
    "time": (("timed", False), ("timed, by_file", False)),
    "whole weights": (("whole", False), ("whole, checkpointed", True), ("whole, by_file", True)),
}


def training_steps(which: str, folder: str) -> dict[str, dict[str, Any]]:
    """Steps with margins that are planned here, of a checkpointed model, and by the file of a plan.

    Statistics of the samples of some ranks are those of the only sample. One plan is within a limit.
    """
    shape, found = (1, 3, 24, 20), {}
    without: dict[bool, float] = {}
    path = Path(folder) / f"step-{dist.get_rank()}.json"
    asked: dict[str, Any] = {"objective": "words", "input_gradient": True}
    slow = Path(folder) / f"slow-{dist.get_rank()}.yaml"
    slow.write_text(MACHINE)
    for name, checkpointed in STEPS[which]:
        model = trainable(checkpointed=checkpointed)
        if name.endswith("by_file"):
            net = synth.parallelize(model, shape, plan=path, check=False, input_gradient=True)
        else:
            norms: Any = "local" if name == "local" else "global"
            limit = {"memory": found["local"]["held"] - 1} if name == "within" else {}
            made = {**asked, **limit, "recompute": 0.5}
            weights = {"whole_weights": True} if name.startswith("whole") else {}
            seconds: dict[str, Any] = TIMED | {"machine": slow} if name == "timed" or weights else {}
            plan = shared_plan(model, shape, batch_norm=norms, **{**made, **seconds, **weights})
            given = {"plan": plan, "input_gradient": True} if seconds else made
            net = synth.parallelize(model, shape, check=False, batch_norm=norms, **given)
            path.write_text(json.dumps(to_json(plan)))
        if checkpointed not in without:
            without[checkpointed] = shared_plan(model, shape, **asked).cost
        found[name] = {
            **step_beside(net, model, shape),
            "costs": [plan.cost, without[checkpointed]],
            "margins": plan.margins is not None,
            "of_plan": plan.words.step[dist.get_rank()],
            "held": plan.held_bytes,
            "whole": sum(plan.whole) if name.startswith("whole") else 1,
            "fits": name != "within" or plan.held_bytes <= limit["memory"],
        }
    return found


def _how(
    model: nn.Module, shape: tuple[int, ...], procs: int, recompute: float, folder: str
) -> dict[str, Any]:
    """Options of `parallelize` for words. With a folder, for time, where buckets sum gradients of weights."""
    if not folder:
        return {"objective": "words", "recompute": recompute}
    slow = Path(folder) / f"slow-{dist.get_rank()}.yaml"
    slow.write_text(MACHINE)
    asked = TIMED | {"machine": slow, "whole_weights": True, "recompute": recompute}
    plan = from_first(partial(synth.plan_model, model, shape, procs, **asked), Ranks.world())
    assert any(plan.whole)
    assert plan.margins is not None or not recompute
    return {"plan": plan}


def optimized(replicas: int, folder: str = "") -> dict[str, Any]:
    """Steps of an optimizer, with replicas of the network: the difference of weights from one process."""
    model, other, shape = trainable(), trainable(), (1, 3, 24, 20)
    for each in (model, other):
        each.batch = nn.Identity()  # whose statistics would be those of a replica
    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("a", "b"))
    asked = _how(model, shape, mesh["b"].size(), 0.5, folder)
    net = synth.parallelize(model, shape, mesh["b"] if replicas == 1 else mesh, check=False, **asked)
    mine = mesh.get_local_rank("a")
    of_one, of_ranks = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (other, net))
    draw = torch.Generator().manual_seed(4)
    before = net.received()
    for _ in range(3):
        batch = torch.randn((replicas, *shape[1:]), generator=draw).double()
        of_one.zero_grad()
        of_ranks.zero_grad()
        other(batch).square().mean().backward()
        net(batch[mine : mine + 1]).full_tensor().square().mean().backward()
        of_one.step()
        of_ranks.step()
    state = net.full_state_dict()
    apart = max(_apart(v, state[n]) for n, v in other.state_dict().items())
    return {"apart": apart, "words": net.received() - before}


def dropped(recompute: float, folder: str = "") -> list[float]:
    """Two accumulated steps with dropout, the first without sums of gradients; sums that tell them apart."""
    model, shape = trainable(drop=0.3), (1, 3, 24, 20)
    asked = _how(model, shape, dist.get_world_size(), recompute, folder)
    net = synth.parallelize(model, shape, check=False, **asked)
    draw = torch.Generator().manual_seed(2)
    torch.manual_seed(3)
    x, y = (torch.randn(shape, generator=draw).double() for _ in range(2))
    with net.no_sync():
        (net(x).full_tensor() ** 2).sum().backward()
    out = net(y).full_tensor()
    (out**2).sum().backward()
    grads = [p.grad.full_tensor() for _, p in sorted(net.named_parameters())]
    return [float(each.abs().sum()) for each in (out, *grads)]


def low_precision_step() -> float:
    """The difference of gradients inside of autocast, as a multiple of that of one process."""
    model, shape = trainable().float(), (1, 3, 32, 24)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    net = synth.parallelize(model, shape, check=False, objective="words", recompute=0.5)
    exact = trainable()
    exact(x.double()).square().sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        one, other = model(x), net(x)
    one.float().square().sum().backward()
    other.full_tensor().float().square().sum().backward()
    right = [p.grad for p in exact.parameters()]
    theirs = dict(net.named_parameters())
    each = [
        [p.grad.double() for p in model.parameters()],
        [theirs[n].grad.full_tensor().double() for n, _ in model.named_parameters()],
    ]
    apart = [sum(float((a - b).square().sum()) for a, b in zip(found, right, strict=True)) for found in each]
    return (apart[1] / apart[0]) ** 0.5


def said(make: Any) -> str:
    """What a call is refused with."""
    try:
        make()
    except SynthError as error:
        return str(error)
    return ""


def refused(folder: str) -> list[str]:
    """Margins that are not planned: all ranks say the same."""
    model, shape = decoder(), (1, 3, 48, 36)
    plan = shared_plan(model, shape, mode="inference", recompute=0.1)
    train = partial(synth.parallelize, model, shape, check=False)
    infer = partial(train, mode="inference")
    found = [
        said(partial(infer, recompute=0.1, plan="spatial")),
        said(partial(infer, recompute=1.5)),
        said(partial(train, plan=plan)),
    ]
    data = to_json(plan)
    assert data["margins"]
    other = Decoder(6).double().eval()
    return [*found, said(partial(synth.parallelize, other, shape, plan=plan, mode="inference", check=False))]


def low_precision() -> float:
    """The difference of bfloat16 inside of autocast, as a multiple of that of one process."""
    model, shape = decoder(8).float(), (1, 3, 48, 36)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    net = synth.parallelize(model, shape, mode="inference", recompute=0.1, check=False)
    with torch.no_grad():
        exact = model.double()(x.double())[0]
        model.float()
        with torch.autocast("cpu", torch.bfloat16):
            one, found = model(x)[0], net(x)[0].full_tensor()
    return float((found.double() - exact).norm() / (one.double() - exact).norm())


def divides(replicas: int) -> bool:
    """Whether replicas of the network have two ranks or more each."""
    return dist.get_world_size() % replicas == 0 and dist.get_world_size() > replicas
