"""Networks with `compile=True` on real ranks, beside one process. Most are only traced, not compiled."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth
from synth.runtime.compiled.steps import compiled
from synth.runtime.model import local_chains

SHAPE, OTHER = (4, 3, 8, 6), (2, 3, 12, 6)


class Block(nn.Module):
    """A frozen norm, a sum and an activation; then gates of halves of the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.both, self.act = nn.Conv2d(width, 2 * width, 1), nn.LeakyReLU(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The gated map."""
        y = self.act(self.norm(self.body(x)) + x)
        one, gate = self.both(y).chunk(2, 1)
        return functional.silu(one) * torch.sigmoid(gate) + functional.gelu(y)


class Blocks(nn.Module):
    """A block. kind: "checkpoints" around it, "dropout" behind it, or "plain"."""

    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        self.first, self.blocks = nn.Conv2d(3, 6, 3, padding=1), nn.ModuleList([Block(6)])
        self.kind, self.drop = kind, nn.Dropout(0.5 if kind == "dropout" else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last map, of which a part is read twice."""
        x = self.first(x)
        for each in self.blocks:
            given = x
            x = checkpoint(each, x, use_reentrant=False) if self.kind == "checkpoints" else each(x)
            x = torch.tanh(self.drop(x)) + given
        return x


@contextmanager
def always_compiled(backend: str = "aot_eager", fails: bool = False) -> Iterator[None]:
    """Every chain is compiled, whatever is measured. fails: the compiler raises an error on rank 1."""

    def made(each: Any) -> Any:
        if fails and dist.get_rank() == 1:
            raise RuntimeError("no compiler is there")
        return compiled(each, backend=backend)

    faster = local_chains.FASTER
    local_chains.compiled, local_chains.FASTER = made, math.inf  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        local_chains.compiled, local_chains.FASTER = compiled, faster  # type: ignore[misc]


def batch(number: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """A batch, the same on all ranks."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def pair(kind: str, **options: Any) -> tuple[Any, nn.Module]:
    """The network, and its model in one process."""
    torch.manual_seed(0)
    model = Blocks(kind).double()
    return synth.parallelize(model, SHAPE, compile=True, check=False, **options), copy.deepcopy(model)


def whole(values: Any) -> torch.Tensor:
    """All words."""
    found = values.full_tensor() if hasattr(values, "full_tensor") else values
    return found.detach()


def apart(net: Any, alone: nn.Module, given: torch.Tensor) -> float:
    """The largest difference of what the two give, and of their parameters and buffers."""
    errors = [whole(net(given)) - whole(alone(given))]
    state = net.full_state_dict()
    errors += [state[key] - each for key, each in alone.state_dict().items()]
    return max(float(each.abs().max()) for each in errors)


def step(model: Any, given: torch.Tensor) -> None:
    """A step of SGD."""
    model.zero_grad()
    model(given).square().mean().backward()
    with torch.no_grad():
        for each in model.parameters():
            each -= 0.1 * each.grad


def names(net: Any, training: bool, grads: bool) -> set[tuple[str, ...]]:
    """The compiled chains of a mode, by their calls."""
    found = net.program.chains.known.items()
    every = [chains for (mode, *_), chains in found if mode == (training, grads)]
    return {each.calls for chains in every for each in chains.of.values() if each.is_compiled}


def trained(kind: str, plan: str, samples: int) -> dict[str, Any]:
    """Steps in training, passes in evaluation with and without gradients, another shape, and a copy."""
    with always_compiled():
        net, alone = pair(kind, plan=plan)
        errors = []
        for number in range(4):
            for each in net, alone:
                step(each, batch(number)[:samples] if number == 3 else batch(number))
        for number in range(3):
            for each in net, alone:
                step(each.train(), batch(5, OTHER))
            with torch.no_grad():
                errors.append(apart(net, alone, batch(number)))
            net.eval(), alone.eval()
            errors.append(apart(net, alone, batch(number)))
            with torch.no_grad():
                errors.append(apart(net, alone, batch(number)))
            with torch.inference_mode():
                errors.append(apart(net, alone, batch(number)))
        errors.append(apart(copy.deepcopy(net), alone, batch(9)))
    return {
        "error": max(errors),
        "training": names(net, True, True),
        "inference": names(net, False, False),
    }


def changed() -> dict[str, float]:
    """What a user changes between passes that run compiled chains."""
    with always_compiled():
        net, alone = pair("plain", plan="spatial")
        found: dict[str, float] = {}

        def compare(name: str, change: Callable[[Any], object], grads: bool = False) -> None:
            for _ in range(3):
                for each in net, alone:
                    change(each)
                with torch.set_grad_enabled(grads):
                    found[name] = max(found.get(name, 0.0), apart(net, alone, batch(0)))

        compare("evaluation", lambda m: m.eval())
        compare("statistics", lambda m: m.blocks[0].norm.running_mean.add_(1.0))
        compare("slope", lambda m: setattr(m.blocks[0].act, "negative_slope", 0.7))
        compare("eps", lambda m: setattr(m.blocks[0].norm, "eps", 0.5))
        compare("one norm trains", lambda m: m.blocks[0].norm.train())
        compare("all train", lambda m: m.train())
        compare("frozen", lambda m: m.eval().first.requires_grad_(False), grads=True)
        compare("weights", lambda m: m.blocks[0].norm.weight.data.mul_(0.5))
    return found


def under_autocast() -> dict[str, float]:
    """Chains under autocast to bfloat16, beside the same network without them."""
    with always_compiled():
        torch.manual_seed(0)
        model = Blocks().float()
        nets = [synth.parallelize(copy.deepcopy(model), SHAPE, compile=c, check=False) for c in (True, False)]
        errors, gradients = [], []
        for number in range(4):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outs = [net(batch(number).float()) for net in nets]
            for net, out in zip(nets, outs, strict=True):
                net.zero_grad()
                out.float().square().mean().backward()
            one, other = map(whole, outs)
            errors.append(float((one - other).abs().max() / other.abs().max()))
            pairs = zip(*(net.parameters() for net in nets), strict=True)
            gradients.append(max(float((whole(a.grad) - whole(b.grad)).abs().max()) for a, b in pairs))
    return {"outputs": max(errors), "gradients": max(gradients), "chains": len(names(nets[0], True, True))}


def failing() -> dict[str, Any]:
    """Where the compiler fails on one rank, all ranks keep the steps as they are."""
    with always_compiled(fails=True):
        net, alone = pair("plain", plan="spatial")
        for number in range(3):
            for each in net, alone:
                step(each, batch(number))
        return {"error": apart(net, alone, batch(9)), "chains": len(names(net, True, True))}


def together() -> float:
    """With `net.compile()`, which has one graph of all steps."""
    with always_compiled():
        net, alone = pair("plain", plan="spatial")
        net.compile(backend="aot_eager")
        for number in range(3):
            for each in net, alone:
                step(each, batch(number))
        assert not names(net, True, True)
        net.compile(disable=True)
        for number in range(3):
            for each in net, alone:
                step(each, batch(number))
        assert names(net, True, True)
        return apart(net, alone, batch(9))


def with_a_compiler() -> dict[str, Any]:
    """What torch's own compiler makes, taken where it is faster; the same on all ranks."""
    net, alone = pair("plain", plan="spatial")
    for number in range(3):
        for each in net, alone:
            step(each, batch(number))
    every = [each for chains in net.program.chains.known.values() for each in chains.of.values()]
    return {
        "error": apart(net, alone, batch(9)),
        "seconds": [each.seconds for each in every],
        "compiled": [each.is_compiled for each in every],
        "failed": [each.failed for each in every],
    }


def refused() -> str:
    """What another value than a bool raises."""
    call = partial(synth.parallelize, Blocks(), SHAPE, compile="reduce-overhead")
    try:
        call()
    except synth.UsageError as error:
        return str(error)
    return ""
