"""What is done between passes in `no_sync` and the pass that sums, on ranks and in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import synth

SHAPE = (4, 3, 6, 8)
Gradients = dict[str, torch.Tensor | None]


class Heads(nn.Module):
    """Two results, one of which does not need all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.one, self.two = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.norm(self.first(x)))
        return self.one(x), self.two(x)


class Run:
    """A network, or its model in one process, with its batches."""

    def __init__(self, net: Any) -> None:
        self.net, self.generator = net, torch.Generator().manual_seed(1)
        self.named = dict(net.named_parameters())

    def loss(self, head: int | None = None, samples: int = 4, net: Any = None) -> torch.Tensor:
        """Of a new batch. head: whose loss it is; None for both."""
        x = torch.randn(samples, *SHAPE[1:], generator=self.generator, dtype=torch.float64)
        outs = (net or self.net)(x)
        given = outs if head is None else [outs[head]]
        losses = [each.square().mean() for each in given]
        return losses[0] if len(losses) == 1 else losses[0] + 2 * losses[1]

    def backward(self, head: int | None = None, **options: Any) -> None:
        self.loss(head).backward(**options)  # type: ignore[no-untyped-call]

    def later(self) -> AbstractContextManager[None]:
        return self.net.no_sync() if hasattr(self.net, "no_sync") else nullcontext()

    def wait(self, head: int | None = None) -> None:
        with self.later():
            self.backward(head)


def frozen(run: Run) -> None:
    run.wait()
    for name in ("first.weight", "one.bias"):
        run.named[name].requires_grad_(False)
    run.backward()


def dropped(run: Run) -> None:
    run.wait()
    run.net.zero_grad()
    run.backward()


def dropped_between(run: Run) -> None:
    loss = run.loss()
    run.wait()
    run.net.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]


def asked(run: Run) -> None:
    some = [run.named[name] for name in ("first.bias", "one.bias", "one.weight")]
    with run.later():
        run.backward(inputs=some[:2])
    run.backward(inputs=some[1:])


def not_reached(run: Run) -> None:
    run.wait()
    run.backward(head=1)


def by_grad(run: Run) -> None:
    run.wait()
    torch.autograd.grad(run.loss(), [*run.net.parameters()])


def copied(run: Run) -> None:
    other = copy.deepcopy(run.net)
    run.wait()
    run.loss(net=other).backward()  # type: ignore[no-untyped-call]
    for name, values in other.named_parameters():
        run.named[f"copy.{name}"] = values
    run.backward(head=0)


def together(run: Run) -> None:
    with run.later():
        (run.loss() + run.loss()).backward()
        loss = checkpoint(run.loss, use_reentrant=False)
        loss.backward()
    run.backward()
    run.backward()


def changed(run: Run) -> None:
    run.wait()
    nn.utils.clip_grad_norm_(run.net.parameters(), 0.01)
    run.backward()


def stepped(run: Run) -> None:
    run.wait()
    torch.optim.SGD(run.net.parameters(), lr=0.1, foreach=True).step()
    run.backward()


def asked_alone(run: Run) -> None:
    with run.later():
        torch.autograd.grad(run.loss(), [*run.net.parameters()])


def hooked(run: Run) -> None:
    run.named["one.bias"].register_hook(lambda values: values.clamp(0, 1e-3))
    run.wait()


def hooked_behind(run: Run) -> None:
    run.named["one.bias"].register_post_accumulate_grad_hook(lambda values: None)
    run.wait()


def two_shapes(run: Run) -> None:
    with run.later():
        (run.loss() + run.loss(samples=3)).backward()


def copied_between(run: Run) -> None:
    run.wait()
    copy.deepcopy(run.net)


SUMMED: dict[str, Callable[[Run], None]] = {
    each.__name__: each
    for each in (frozen, dropped, dropped_between, asked, not_reached, by_grad, copied, together)
}
REFUSED: dict[str, tuple[Callable[[Run], None], str]] = {
    "a changed gradient": (changed, "waits for its sum since a pass in no_sync(), but it or the parameter"),
    "a step": (stepped, "waits for its sum since a pass in no_sync(), but it or the parameter"),
    "torch.autograd.grad": (asked_alone, "gradients of torch.autograd.grad() cannot wait in no_sync()"),
    "a hook": (hooked, "one.bias has a hook, which would see a gradient without its sum in no_sync()"),
    "a hook behind": (hooked_behind, "one.bias has a hook, which would see a gradient without its sum"),
    "two shapes": (two_shapes, "gradients of batches of another shape, or of another call, wait"),
    "a copy": (copied_between, "a network is copied, but gradients wait for their sum"),
}


def net_of(model: nn.Module, plan: Any) -> Any:
    return synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan, check=False)


def summed(plan: Any) -> dict[str, float]:
    """By case, how far gradients are from one process."""
    torch.manual_seed(0)
    model, found = Heads().double(), {}
    for name, case in SUMMED.items():
        runs = Run(net_of(model, plan)), Run(copy.deepcopy(model))
        for run in runs:
            case(run)
        pairs = [[each.named[key].grad for each in runs] for key in runs[1].named]
        assert all((mine is None) == (own is None) for mine, own in pairs)
        found[name] = max(far(mine.full_tensor(), own) for mine, own in pairs if own is not None)
    return found


def refused(plan: Any) -> dict[str, str]:
    """By case, what is said."""
    torch.manual_seed(0)
    model, found = Heads().double(), {}
    for name, (case, _) in REFUSED.items():
        found[name] = "accepted"
        try:
            case(Run(net_of(model, plan)))
        except ValueError as error:
            found[name] = str(error)
        dist.barrier()
    return found


class Tied(nn.Module):
    """A weight of several layers, which some ranks are sent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.again(torch.tanh(self.first(x))))
        x = nn.functional.conv2d(torch.tanh(self.again(x)), self.again.weight.abs(), padding=1)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def computed_again(plan: Any) -> float:
    """How far gradients are from one process where the user checkpoints the network."""
    torch.manual_seed(0)
    model = Tied().double()
    net = net_of(model, plan)
    x = torch.randn(SHAPE, dtype=torch.float64)
    for each in (net, model):
        for _ in range(2):
            checkpoint(each, x, use_reentrant=False).square().mean().backward()
    theirs = dict(net.named_parameters())
    return max(far(theirs[name].grad.full_tensor(), each.grad) for name, each in model.named_parameters())


def far(one: torch.Tensor, other: Any) -> float:
    return float((one - other).abs().max()) / max(1.0, float(other.abs().max()))
