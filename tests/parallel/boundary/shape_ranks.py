"""Networks on ranks that are given batches of several shapes, beside one process."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from beside_one_process import refusal
from shared_plan import shared_plan
from torch import nn

import synth
from synth.runtime.model import call_graphs

Shape = tuple[int, ...]
PLANNED: Shape = (8, 3, 16, 16)
SHAPES: list[Shape] = [PLANNED, (3, 3, 16, 16), (2, 3, 16, 16), (8, 3, 12, 20), (3, 3, 16, 16), PLANNED]


def model() -> nn.Module:
    """Layers with weights, groups, statistics and a linear layer."""
    torch.manual_seed(0)
    layers = [
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(16, 12, 3)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)),
    ]
    return nn.Sequential(*layers).double()


def step(net: nn.Module, optimizer: torch.optim.Optimizer, shape: Shape) -> float:
    """A training step on a batch that follows from its shape."""
    source = torch.Generator().manual_seed(sum(shape))
    images = torch.randn(shape, generator=source).double()
    labels = torch.randint(0, 5, shape[:1], generator=source)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach())


def apart(net: Any, whole: nn.Module) -> float:
    """The largest difference of the states."""
    pairs = zip(net.full_state_dict().values(), whole.state_dict().values(), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def both(plan: Any) -> list[Any]:
    """The network and the model, each with an optimizer."""
    whole = model()
    nets = [synth.parallelize(copy.deepcopy(whole), PLANNED, plan=plan), whole]
    return [(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)) for net in nets]


def trained(plan: Any, most: int) -> dict[str, Any]:
    """Steps on batches of several shapes. most: step graphs that are kept."""
    before, call_graphs.MOST = call_graphs.MOST, most
    try:
        (net, ours), (whole, theirs) = both(plan)
        losses = [abs(step(net, ours, shape) - step(whole, theirs, shape)) for shape in SHAPES]
        kept = len(list(net._programs))
        return {"error": max(*losses, apart(net, whole)), "kept": kept, "received": net.received() > 0}
    finally:
        call_graphs.MOST = before


def used() -> dict[str, Any]:
    """Evaluation, copies, frozen parameters and own parts with another shape."""
    (net, ours), (whole, theirs) = both(None)
    images = torch.randn(3, 3, 20, 12, generator=torch.Generator().manual_seed(1)).double()
    errors = []
    copied = copy.deepcopy(net)
    with torch.no_grad():
        net.get_parameter("0.weight").mul_(2)
        whole_before = copy.deepcopy(whole)
        whole[0].weight.mul_(2)
    for one, other in ((copied, whole_before), (net, whole)):
        one.eval(), other.eval()
        with torch.inference_mode():
            for batch in (images, torch.zeros_like(images)):
                errors.append(float((one(batch).full_tensor() - other(batch)).abs().max()))
        one.train(), other.train()
    net.get_parameter("4.weight").requires_grad_(False)
    whole[4].weight.requires_grad_(False)
    errors += [
        abs(step(net, ours, shape) - step(whole, theirs, shape)) for shape in ((3, 3, 16, 16), PLANNED)
    ]
    errors.append(apart(net, whole))
    batch = torch.randn(PLANNED, generator=torch.Generator().manual_seed(2)).double()
    part = net.scatter(batch, like="input").to_local()
    net.eval(), whole.eval()
    errors.append(float((net(part).full_tensor() - whole(batch)).abs().max().detach()))
    return {"error": max(errors), "frozen": net.get_parameter("4.weight").grad is None}


def accumulated() -> dict[str, Any]:
    """Gradients of several shapes with and without no_sync."""
    (net, _), (whole, _) = both("data")
    one, other = torch.randn(PLANNED).double(), torch.randn(4, 3, 12, 12).double()
    dist.broadcast(one, 0)
    dist.broadcast(other, 0)
    for batch in (one, other):
        for each in (net, whole):
            torch.autograd.backward(each(batch).square().mean())
    pairs = zip(net.parameters(), whole.parameters(), strict=True)
    error = max(float((p.grad.full_tensor() - q.grad).abs().max()) for p, q in pairs)  # type: ignore[union-attr]
    with net.no_sync():
        torch.autograd.backward(net(one).square().mean())
    return {"error": error, "refused": refusal(lambda: net(other))}


def refused() -> list[str]:
    """What is refused, as sentences."""
    net = synth.parallelize(model(), PLANNED)
    plan = shared_plan(model(), PLANNED)
    planned = synth.parallelize(model(), PLANNED, plan=plan)
    other = torch.ones(5, 3, 16, 16).double()
    sentences = [
        refusal(lambda: planned(other)),
        refusal(lambda: net(torch.ones(5, 4, 16, 16).double())),
        refusal(lambda: net(torch.ones(5, 3, 16).double())),
        refusal(lambda: net(torch.ones(5, 3, 2, 2).double())),
    ]
    try:
        net(other if dist.get_rank() else torch.ones(6, 3, 16, 16).double())
    except (RuntimeError, ValueError) as fault:
        sentences.append(str(fault))
    return sentences


def of_inputs() -> tuple[bool, float]:
    """Gradients of a batch of another shape, where the first plan makes them of rows that are computed twice.

    Whether that holds, and the largest difference from one process.
    """
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 2, 2), nn.ConvTranspose2d(2, 7, 4, 3, 1), nn.Conv2d(7, 8, 1, 2, dilation=(2, 1))
    whole = nn.Sequential(*layers).double()
    net = synth.parallelize(
        copy.deepcopy(whole), (1, 3, 16, 16), recompute=0.5, objective="words", check=False
    )
    off = []
    for shape in ((1, 3, 16, 16), (8, 3, 4, 4)):
        batches = [torch.ones(shape).double().requires_grad_() for _ in range(2)]
        for each, batch in zip((net, whole), batches, strict=True):
            each(batch).square().sum().backward()
        ours, right = (batch.grad for batch in batches)
        assert ours is not None
        assert right is not None
        off.append(float((ours - right).abs().max()))
    return net.program.makes_input_gradient, max(off)
