"""Compiled steps under autocast, on real ranks, beside the steps as they are and one process."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from compiled_steps_ranks import far, some_empty, whole
from torch import nn
from torch.nn import functional

import synth
from synth.parallel.front_end.trace_model import trace_model

SHAPE = 4, 3, 6, 8


class Mixed(nn.Module):
    """Layers that autocast computes in lower precision, others, and a region of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.two, self.group = nn.Conv2d(5, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.three, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.one(x)))
        x = self.group(self.two(x)).softmax(1) * 3
        with torch.autocast("cpu", enabled=False):
            x = self.three(x.float())
        return self.last(functional.avg_pool2d(x, 2).mean((2, 3)))


def low(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Autocast to a dtype; None for none."""
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def networks(empty: bool, **more: Any) -> list[Any]:
    """Compiled, as it is, and in one process."""
    torch.manual_seed(0)
    model, options = Mixed(), dict[str, Any](objective="words", check=False, **more)
    if empty:
        options["plan"] = some_empty(trace_model(model, SHAPE).network, True)
    mine: Any = synth.parallelize(copy.deepcopy(model), SHAPE, **options)
    eager = copy.deepcopy(mine)
    mine.compile(backend="aot_eager")
    return [mine, eager, model]


class Beside:
    """Distances of compiled steps from the steps as they are, and from one process. wrong: dtypes."""

    def __init__(self, nets: list[Any]) -> None:
        self.nets, self.wrong, self.number = nets, list[str](), 0
        self.eager = self.alone = 0.0
        self.optimizers = [torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in nets]

    def step(self, what: str, dtype: torch.dtype | None, inside: bool = False, samples: int = 4) -> None:
        """A step. inside: whether the backward pass runs under autocast, too."""
        generator = torch.Generator().manual_seed(self.number)
        x = torch.randn(samples, *SHAPE[1:], generator=generator)
        self.number += 1
        outs, grads = list[torch.Tensor](), list[list[torch.Tensor]]()
        for net, optimizer in zip(self.nets, self.optimizers, strict=True):
            optimizer.zero_grad()
            with low(dtype):
                outs.append(whole(net(x)))
            if outs[-1].requires_grad:
                with low(dtype if inside else None):
                    outs[-1].float().square().mean().backward()
                found = (each.grad for each in net.parameters())
                grads.append([whole(each) for each in found if each is not None])
                optimizer.step()
        if {each.dtype for each in outs} != {outs[0].dtype}:
            self.wrong.append(f"{what}: {[each.dtype for each in outs]}")
        values = [[out, *each] for out, each in zip(outs, grads or [[], [], []], strict=True)]
        self.eager = max(self.eager, *(far(a, b) for a, b in zip(values[0], values[1], strict=True)))
        self.alone = max(self.alone, *(far(a, b) for a, b in zip(values[0], values[2], strict=True)))

    def found(self) -> dict[str, Any]:
        """What was found; and the compiled passes."""
        passes = len(self.nets[0]._compiled.passes) if self.nets[0]._compiled else 0
        return {"wrong": self.wrong, "eager": self.eager, "alone": self.alone, "passes": passes}


def steps(empty: bool) -> dict[str, Any]:
    """Two steps under autocast to bfloat16."""
    seen = Beside(networks(empty))
    seen.step("first", torch.bfloat16)
    seen.step("second", torch.bfloat16)
    return seen.found()


def in_turn() -> dict[str, Any]:
    """With and without autocast, of two dtypes; backward inside; frozen; evaluation, another batch."""
    seen = Beside(networks(False))
    for dtype in (None, torch.bfloat16, None, torch.float16, torch.bfloat16):
        seen.step(f"{dtype}", dtype)
    seen.step("inside", torch.bfloat16, inside=True)
    for net in seen.nets:
        net.one.requires_grad_(False)
    seen.step("frozen", torch.bfloat16)
    for net in seen.nets:
        net.eval()
    with torch.no_grad():
        seen.step("no gradients", torch.bfloat16)
        seen.step("no gradients, no autocast", None)
    seen.step("evaluation", torch.bfloat16)
    for net in seen.nets:
        net.train()
    seen.step("another batch", torch.bfloat16, samples=3)
    return seen.found()


def on_one_rank() -> str:
    """What is said of autocast on one rank alone."""
    mine, *_ = networks(False)
    try:
        with low(None if dist.get_rank() else torch.bfloat16):
            mine(torch.ones(SHAPE))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "accepted"


def around() -> dict[str, Any]:
    """torch.compile with `fullgraph=True` around networks with whole outputs, with and without autocast."""
    mine, eager, model = networks(False, outputs="whole")
    mine.compile(disable=True)
    torch._dynamo.reset()
    step = torch.compile(mine, backend="aot_eager", fullgraph=True)
    said = ""
    try:
        with low(torch.bfloat16):
            step(torch.ones(SHAPE))
    except Exception as error:  # Dynamo's own class
        said = str(error)
    torch._dynamo.reset()
    for net in (mine, eager, model):  # for each has statistics
        with low(torch.bfloat16):
            net(torch.ones(SHAPE))
    seen = Beside([mine, eager, model])
    seen.nets[0] = step
    for dtype in (torch.bfloat16, None, torch.bfloat16):
        seen.step(f"{dtype}", dtype)
    with torch.no_grad():
        seen.step("no gradients", torch.bfloat16)
    seen.nets[0] = mine
    return {**seen.found(), "said": said}
