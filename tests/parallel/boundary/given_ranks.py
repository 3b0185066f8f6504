"""Plain tensors and numbers that meet partitioned tensors, alike on all ranks or not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn

import synth

SHAPE, OUT = (4, 3, 8, 8), (4, 6, 8, 8)
networks: dict[str, tuple[Any, nn.Module]] = {}


def network(plan: Any) -> tuple[Any, nn.Module]:
    """A small network on ranks, and in one process."""
    if str(plan) not in networks:
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 6, 3, padding=1)
        whole = nn.Sequential(*layers).double()
        networks[str(plan)] = synth.parallelize(copy.deepcopy(whole), SHAPE, plan=plan), whole
    return networks[str(plan)]


def drawn(seed: float, *shape: int) -> torch.Tensor:
    """Words that depend on a number."""
    generator = torch.Generator().manual_seed(int(10 * seed))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def labels(other: float) -> torch.Tensor:
    """Labels of all words, of which one depends on a number."""
    found = torch.arange(4 * 64).reshape(4, 8, 8) % 6
    found[3, 7, 7] = 1 + int(other)
    return found


def swapped(other: float) -> torch.Tensor:
    """Targets of which two words of one sample change places."""
    found = drawn(1, *OUT)
    places = [0, 1] if other else [1, 0]
    found[2, 4, 3, :2] = found[2, 4, 3, places]
    return found


def with_nan(other: float) -> torch.Tensor:
    """Targets that lack words, of which one depends on a number."""
    found = drawn(1, *OUT)
    found[0, :, 2], found[1, 1, 1, int(other)] = torch.nan, torch.nan
    return found


def mean_where_known(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean square over words that are not NaN."""
    return torch.where(target.isnan(), 0.0, out - target.nan_to_num()).square().mean()


@torch.no_grad()
def without_gradients(net: Any, x: torch.Tensor) -> Any:
    """A pass as in evaluation."""
    return net(x)


def scaled(net: Any, x: torch.Tensor, other: float) -> None:
    """A loss that GradScaler scales."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0 * (1 + other))
    scaler.scale(net(x).square().mean()).backward()


def learned(net: Any, x: torch.Tensor, optimizer: Any) -> None:
    """Two steps: a pass that follows an update compares its numbers."""
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def backward(loss: Callable[[Any, float], torch.Tensor]) -> Callable[[Any, Any, float], Any]:
    """A pass with a loss of the output and of a number that may differ."""
    return lambda net, x, other: loss(net(x), other).backward()  # type: ignore[no-untyped-call]


# (what is computed, what it is called): `other` is 0.0, but on one rank another number where ranks differ
CASES: dict[str, tuple[Callable[[Any, Any, float], Any], str]] = {
    "targets": (backward(lambda o, n: fn.mse_loss(o, drawn(1 + n, *OUT))), "argument target of mse_loss"),
    "order": (backward(lambda o, n: fn.l1_loss(o, swapped(n))), "argument other of sub"),
    "partly known": (backward(lambda o, n: mean_where_known(o, with_nan(n))), "argument"),
    "one label": (
        backward(lambda o, n: fn.cross_entropy(o, labels(n))),
        "argument target of nll_loss2d_forward",
    ),
    "class weights": (
        backward(lambda o, n: fn.cross_entropy(o, labels(0), 1 + n + torch.arange(6).double())),
        "argument weight of nll_loss2d_forward",
    ),
    "smoothing": (
        backward(lambda o, n: fn.cross_entropy(o, labels(0), label_smoothing=0.1 + n / 10)),
        "",
    ),
    "a mask": (backward(lambda o, n: (o * (labels(n) > 1)[:, None]).sum()), "argument other of mul"),
    "a filled mask": (
        backward(lambda o, n: o.masked_fill(labels(n)[:, None] == 1, 0.0).sum()),
        "argument mask",
    ),
    "a factor": (backward(lambda o, n: (o * (1 + n)).sum()), "number in mul"),
    "an exponent": (backward(lambda o, n: (o.abs() ** (2 + n)).sum()), "number in pow"),
    "a limit": (backward(lambda o, n: o.clamp(-1 - n, 0.5).sum()), "number in clamp"),
    "a change in place": (
        backward(lambda o, n: o.add_(drawn(1 + n, 8)).square().sum()),
        "argument other of add_",
    ),
    "a scale of the loss": (backward(lambda o, n: o.square().mean() * (1 + n)), "gradient in mul"),
    "a loss of the whole": (
        backward(lambda o, n: fn.mse_loss(o.full_tensor(), drawn(1 + n, *OUT))),
        "gradient of (4, 6, 8, 8)",
    ),
    "a given gradient": (lambda net, x, n: net(x).backward(drawn(1 + n, *OUT)), "gradient of (4, 6, 8, 8)"),
    "autograd.grad": (
        lambda net, x, n: torch.autograd.grad(net(x), [*net.parameters()], drawn(1 + n, *OUT)),
        "gradient of (4, 6, 8, 8)",
    ),
    "GradScaler": (scaled, "gradient in mul"),
    "scattered targets": (
        lambda net, x, n: fn.mse_loss(net(x), net.scatter(drawn(1 + n, *OUT))).backward(),
        "whole of (4, 6, 8, 8)",
    ),
    "a scattered batch": (lambda net, x, n: net(net.scatter(x + n)), "whole of (4, 3, 8, 8)"),
    "a batch": (lambda net, x, n: net(x + n), "batch"),
    "targets with a gradient": (
        backward(lambda o, n: fn.mse_loss(o, drawn(1 + n, *OUT).requires_grad_())),
        "argument target of mse_loss",
    ),
    "a rate of SGD": (
        lambda net, x, n: learned(net, x, torch.optim.SGD(net.parameters(), lr=1e-3 * (1 + n))),
        "number in add_",
    ),
    "a rate of fused AdamW": (
        lambda net, x, n: learned(net, x, torch.optim.AdamW(net.parameters(), lr=1e-3 * (1 + n), fused=True)),
        "number in _fused_adamw_",
    ),
    "a decay": (
        lambda net, x, n: learned(net, x, torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=n / 100)),
        "number in add_",
    ),
    "a fixed weight": (
        lambda net, x, n: (next(net.parameters()).requires_grad_(not n), net(x).sum().backward()),
        "requires_grad or no_grad() of the network",
    ),
    "recorded gradients": (
        lambda net, x, n: without_gradients(net, x) if n else net(x),
        "requires_grad or no_grad() of the network",
    ),
    "loaded values": (
        lambda net, x, n: (net.load_full_state_dict({k: v + n for k, v in state(net).items()}), net(x)),
        "argument src of copy_",
    ),
    "assigned data": (
        lambda net, x, n: (setattr(net[0].weight, "data", drawn(1 + n, 5, 3, 3, 3)), net(x)),
        "data of (5, 3, 3, 3)",
    ),
    "a vector of parameters": (
        lambda net, x, n: (nn.utils.vector_to_parameters(drawn(1 + n, 416), net.parameters()), net(x)),
        "data of (5, 3, 3, 3)",
    ),
}


def state(net: Any) -> dict[str, torch.Tensor]:
    """Values that do not depend on the ranks."""
    return {key: drawn(1, *values.shape) for key, values in net.state_dict().items()}


def outcome(name: str, plan: Any, differ: bool) -> str:
    """What is raised where the last rank, or no rank, has another number."""
    net, _ = network(plan)
    me, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    run, _ = CASES[name]
    try:
        with warnings.catch_warnings(action="ignore"):
            run(net, drawn(0, *SHAPE), 1.0 if differ and me == size - 1 else 0.0)
            net(drawn(0, *SHAPE))  # which compares what was noted since
    except RuntimeError as fault:
        return str(fault)
    return "nothing"


def outcomes(plan: Any, differ: bool) -> dict[str, str]:
    """Of all cases; the network has the values of one process before each of them, and works after."""
    net, whole = network(plan)
    found = {}
    for name in CASES:
        net.train().requires_grad_()
        net.zero_grad()
        net.load_full_state_dict(whole.state_dict())
        found[name] = outcome(name, plan, differ)
    net.train().requires_grad_()
    net.load_full_state_dict(whole.state_dict())
    apart = (net(drawn(0, *SHAPE)).full_tensor() - whole(drawn(0, *SHAPE))).abs().max()
    found["afterwards"] = "right" if float(apart) < 1e-10 else f"{float(apart)} off"
    return found


def alone(plan: Any) -> list[str]:
    """What is said of a rank that looks at its own part alone, and of one that calls an operation alone."""
    net, _ = network(plan)
    said = []
    for own in (True, False):
        out = net(drawn(0, *SHAPE))
        if torch.distributed.get_rank() == 0:
            look = out.detach().to_local() if own else out.detach()
            _ = look + 3 > 0
        try:
            out.mul(2).square().mean().backward()
            said.append("nothing")
        except RuntimeError as fault:
            said.append(str(fault))
    return said


def other_dtype(plan: Any) -> str:
    """What is said of a network that the last rank alone has put into float32."""
    net = synth.parallelize(copy.deepcopy(network(plan)[1]), SHAPE, plan=plan)
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        net.float()
    try:
        net(drawn(0, *SHAPE))
    except RuntimeError as fault:
        return str(fault)
    return "nothing"


class Scaled(nn.Module):
    """A factor of one word, or of some, is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * factor  # type: ignore[no-any-return]


def gradients_of_wholes(plan: Any) -> dict[str, float]:
    """How far the gradients of plain tensors, inputs and targets, are from those of one process."""
    found = {}
    for shape in ((), (1,), (8,), (4, 1, 1)):
        torch.manual_seed(0)
        whole = Scaled().double()
        example = torch.ones(shape, dtype=torch.float64)
        given = synth.Inputs(SHAPE, example)
        net = synth.parallelize(copy.deepcopy(whole), given, plan=plan, input_gradient=True)
        pairs = []
        for model in (net, whole):
            factor, target = drawn(3, *shape).requires_grad_(), drawn(4, 4, 4, 8, 8).requires_grad_()
            fn.mse_loss(model(drawn(0, *SHAPE), factor), target).backward()
            assert factor.grad is not None
            assert target.grad is not None
            grads = factor.grad, target.grad
            pairs.append([getattr(each, "full_tensor", each.clone)() for each in grads])
        for name, mine, its in zip(("factor", "target"), *pairs, strict=True):
            found[f"{name} of {shape}"] = float((mine - its).abs().max())
    return found


class Changing(nn.Module):
    """A model of two inputs, of which it changes the first in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return self.conv(x) + self.conv(y)  # type: ignore[no-any-return]


def shared_memory(plan: Any) -> tuple[list[str], float]:
    """What is said of inputs that have words in common; how far those that have none are from one process."""
    torch.manual_seed(0)
    whole = Changing().double()
    net: Any = synth.parallelize(copy.deepcopy(whole), (SHAPE, SHAPE), plan=plan)
    both, said = drawn(1, 8, *SHAPE[1:]), []
    for pair in [
        (both[:4], both[:4]),
        (both[:4], both[2:6]),
        (both[4:].flip(0), both[:4]),
        (both[::2], both[1::2]),
    ]:
        try:
            out = net(*pair).full_tensor()
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("")
            apart = float((out - whole(*(each.clone() for each in pair))).abs().max())
    part = net.scatter(both[:4], like="x")
    try:
        net(part, part)
    except ValueError as error:
        said.append(str(error))
    return said, apart
