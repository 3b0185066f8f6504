"""What gets gradients in compiled steps, on real ranks, beside the steps as they are and one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from compiled_steps_ranks import far, some_empty, whole
from torch import nn
from torch.utils.checkpoint import checkpoint

import synth
from synth.parallel.front_end.trace_model import trace_model

SHAPE = 4, 3, 5, 7
Outs = dict[str, Any]


class Heads(nn.Module):
    """Two inputs, and heads of the first one, of both, of what is detached, and without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.first, self.second = nn.Conv2d(4, 2, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.other, self.scale = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Parameter(torch.ones(4, 1, 1))
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Outs:
        z = torch.relu(self.norm(self.body(x)))
        both = self.second(z + self.other(y) * self.scale)
        seen = self.last(z.detach().mean((2, 3)))
        return {"first": self.first(z), "second": both, "seen": seen, "fixed": z.detach()}


LOSSES: dict[str, Callable[[Outs], list[Any]]] = {
    "first": lambda outs: [outs["first"].square().mean()],
    "second": lambda outs: [outs["second"].square().mean()],
    "seen": lambda outs: [outs["seen"].square().mean()],
    "first, seen": lambda outs: [outs["first"].square().mean() + outs["seen"].square().mean()],
    "all": lambda outs: [sum(outs[name].square().mean() for name in ("first", "second", "seen"))],
    "one after another": lambda outs: [outs["seen"].square().mean(), outs["first"].square().mean()],
}


def networks(empty: bool, dtype: torch.dtype = torch.float64, outputs: str = "partitioned") -> list[Any]:
    """Compiled, as it is, and in one process."""
    torch.manual_seed(0)
    model, shapes = Heads().to(dtype), {"x": SHAPE, "y": SHAPE}
    options: dict[str, Any] = {"objective": "words"}
    if empty:
        options = {"plan": some_empty(trace_model(model, shapes).network, True)}
    options.update(check=False, outputs=outputs)
    mine: Any
    mine, eager = (synth.parallelize(copy.deepcopy(model), shapes, **options) for _ in range(2))
    mine.compile(backend="aot_eager")
    return [mine, eager, model]


def batches(number: int, samples: int = SHAPE[0]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the two inputs."""
    generator = torch.Generator().manual_seed(number)
    shape = samples, *SHAPE[1:]
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return x, y


def gradients(net: Any, given: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor | None]:
    """Of parameters and inputs, whole; None where there is none."""
    found = {name: each.grad for name, each in net.named_parameters()}
    found.update({f"input {at}": each.grad for at, each in enumerate(given)})
    return {name: None if each is None else whole(each) for name, each in found.items()}


class Compared:
    """What compiled steps do that the others do not. parts: of a batch, whose gradients add up."""

    def __init__(self, nets: list[Any]) -> None:
        self.nets, self.wrong, self.far, self.number = nets, list[str](), 0.0, 0
        self.optimizers = [
            torch.optim.SGD(each.parameters(), lr=0.02, momentum=0.9, weight_decay=0.3) for each in nets
        ]

    def step(
        self, what: str, loss: str, asked: bool = False, parts: int = 1, samples: int = SHAPE[0]
    ) -> None:
        """Some backward passes and a step of the optimizers. asked: whether inputs require gradients."""
        grads = []
        for net, optimizer in zip(self.nets, self.optimizers, strict=True):
            optimizer.zero_grad()
            for part in range(parts):
                given = tuple(e.requires_grad_(asked) for e in batches(self.number + part, samples))
                outs = net(*given)
                self.require(f"{what}: requires_grad", not outs["fixed"].requires_grad)
                losses = LOSSES[loss](outs)
                for each in losses:
                    each.backward(retain_graph=each is not losses[-1])
            grads.append(gradients(net, given))
            optimizer.step()
        self.number += parts
        self.compare(what, *grads)

    def compare(self, what: str, mine: Any, *others: Any) -> None:
        """Gradients of compiled steps, with those of the others."""
        for name, values in mine.items():
            for other in others:
                one = other[name]
                self.require(f"{what}: {name} is None: {values is None}", (values is None) == (one is None))
                if values is not None and one is not None:
                    self.far = max(self.far, far(values, one))

    def require(self, what: str, said: bool) -> None:
        if not said:
            self.wrong.append(what)

    def found(self) -> dict[str, Any]:
        """What was found, with the distance of weights and buffers."""
        states = [each.full_state_dict() for each in self.nets[:2]] + [self.nets[2].state_dict()]
        for other in states[1:]:
            self.far = max(self.far, *(far(states[0][key], values) for key, values in other.items()))
        return {"wrong": self.wrong, "far": self.far}


def reached(empty: bool, loss: str) -> dict[str, Any]:
    """One loss: two steps, with gradients of inputs in the second one; words of a step that uses all."""
    seen = Compared(networks(empty))
    seen.step("a step", loss)
    words = [each.received() for each in seen.nets[:2]]
    seen.require(f"words: {words}", words[0] == words[1] or (words[0] > words[1] and loss != "all"))
    seen.step("gradients of inputs", loss, asked=True)
    return seen.found()


def upstream(inside: bool) -> dict[str, Any]:
    """A network that gives another one its second input, behind a layer of the user's; hooks that are called.

    inside: whether the second network is called in a checkpoint.
    """
    seen = Compared(networks(False))
    before, called, grads = nn.Conv2d(3, 3, 3, padding=1).double(), [list[str](), list[str]()], list[Any]()
    options = {"objective": "words", "check": False}
    for which, net in enumerate((seen.nets[0], seen.nets[2])):
        own: Any = copy.deepcopy(before) if which else synth.parallelize(before, SHAPE, **options)
        named = {f"before.{name}": each for name, each in own.named_parameters()}
        named.update(net.named_parameters())
        for name, each in named.items():
            note = partial(_note, called[which], name)
            each.register_hook(note), each.register_post_accumulate_grad_hook(note)
        for loss in ("first", "seen", "one after another", "second"):
            x, y = batches(1)
            given = x, torch.tanh(own(y))
            outs = checkpoint(net, *given, use_reentrant=False) if inside else net(*given)
            losses = LOSSES[loss](outs)
            for each in losses:
                each.backward(retain_graph=each is not losses[-1])
            called[which].append(f"behind {loss}")
            grads.append(
                {name: None if e.grad is None else whole(e.grad).clone() for name, e in named.items()}
            )
    for place in range(4):
        seen.compare(f"loss {place}", grads[place], grads[4 + place])
    for part in zip(*map(_parts, called), strict=True):
        seen.require(f"hooks: {part}", sorted(part[0]) == sorted(part[1]))
    return {"wrong": seen.wrong, "far": seen.far}


def _note(called: list[str], name: str, values: torch.Tensor) -> None:
    called.append(f"{name}: {values is None}")


def _parts(called: list[str]) -> list[list[str]]:
    """The hooks behind each loss."""
    found = [list[str]()]
    for name in called:
        found[-1].append(name)
        if name.startswith("behind"):
            found.append([])
    return found


def in_turn(outputs: str) -> dict[str, Any]:
    """Losses in turn; parts of a batch, frozen parameters, evaluation, another batch."""
    seen = Compared(networks(False, outputs=outputs))
    for loss in ("all", "first", "seen", "second"):
        seen.step(loss, loss)
    seen.step("parts", "first", parts=2)
    for net in seen.nets:
        net.body.requires_grad_(False)
    seen.step("frozen", "first")
    seen.step("frozen, inputs", "second", asked=True)
    for net in seen.nets:
        net.eval(), net.body.requires_grad_(True)
        with torch.no_grad():
            net(*batches(99))
    seen.step("evaluation", "first, seen")
    for net in seen.nets:
        net.train()
    seen.step("another batch", "second", samples=3)
    grads = []
    for net in seen.nets:
        outs, chosen = net(*batches(7)), (net.first.weight, net.second.weight, net.last.bias)
        made = torch.autograd.grad(outs["second"].mean(), chosen, allow_unused=True)
        grads.append({f"{at}": None if each is None else whole(each) for at, each in enumerate(made)})
    seen.compare("autograd.grad", *grads)
    return seen.found()
