"""Gradients of compiled steps: of what the gradients of outputs reach, as in torch.

A compiled pass is one node of autograd. Its backward pass takes zeros for an output
that a loss does not use, and gives gradients to all that it was given: zeros to what
only such outputs depend on, where torch gives none and calls no hooks. So a pass that
has such tensors is not a node itself. Each output has one, which leads to those of what
its gradient reaches. The first of these calls the compiled backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Tensors = Sequence[torch.Tensor]
Reach = Mapping[int, Collection[int]]  # of an output -> the places of given tensors


def connected(
    reach: Reach,
    given: Tensors,
    call: Callable[[Tensors], Tensors],
    back: Callable[[], None],
) -> list[torch.Tensor]:
    """What a call makes; each output is connected to what its gradient reaches.

    reach: of the outputs that have gradients. back: called before a backward pass.
    """
    behind: dict[int, list[int]] = {}
    for out, places in reach.items():
        for place in places:
            behind.setdefault(place, []).append(out)
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, outs in sorted(behind.items()):
        groups.setdefault(tuple(outs), []).append(place)
    inner = [e.detach().requires_grad_() if e.requires_grad else e for e in given]
    found = list(call(inner))
    ends = {at: found[at] for at in reach}, {at: inner[at] for at in behind}
    inside = Inside(*ends, back)
    ways: dict[int, list[torch.Tensor]] = {out: [] for out in reach}
    for group, places in groups.items():
        tensors = [given[place] for place in places]
        way = Given.apply(inside, places, *tensors)  # type: ignore[no-untyped-call]
        for out in group:
            ways[out].append(way)
    for out, each in ways.items():
        found[out] = Made.apply(inside, out, found[out].detach(), *each)  # type: ignore[no-untyped-call]
    return found


class Inside:
    """A compiled pass that is no part of the user's graph.

    made, given: its outputs and what it is given, by place. gradients: of outputs that
    the backward pass which runs has reached. found: those of what is given.
    back: called before each call of the compiled backward pass.
    """

    def __init__(
        self,
        made: dict[int, torch.Tensor],
        given: dict[int, torch.Tensor],
        back: Callable[[], None],
    ) -> None:
        self.made, self.given, self.back, self.task = made, given, back, -1
        self.gradients: dict[int, torch.Tensor] = {}
        self.found: dict[int, torch.Tensor] = {}

    def take(self, place: int, gradient: torch.Tensor) -> None:
        """The gradient of an output. All come before `give`: their nodes are newer."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task, self.gradients, self.found = task, {}, {}
        self.gradients[place] = gradient

    def give(self, places: Sequence[int]) -> list[torch.Tensor | None]:
        """Gradients of what is given."""
        grads, self.gradients = self.gradients, {}
        if grads:
            self.back()
            engine: Any = torch._C._autograd
            keeps = engine._get_current_graph_task_keep_graph()
            made = torch.autograd.grad(
                [self.made[place] for place in grads],
                [*self.given.values()],
                [*grads.values()],
                retain_graph=keeps or len(grads) < len(self.made),
                allow_unused=True,
            )
            for place, each in zip(self.given, made, strict=True):
                if each is not None:
                    more = self.found.get(place)
                    self.found[place] = each if more is None else more + each
        return [self.found.pop(place, None) for place in places]


class Given(torch.autograd.Function):
    """Between some tensors that a pass is given and the outputs that lead to them."""

    @staticmethod
    def forward(
        ctx: Any, inside: Inside, places: Sequence[int], *given: torch.Tensor
    ) -> torch.Tensor:
        """A number, by which the outputs depend on the tensors."""
        ctx.inside, ctx.places = inside, places
        return torch.zeros((), device=given[0].device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, way: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the tensors."""
        return None, None, *ctx.inside.give(ctx.places)


class Made(torch.autograd.Function):
    """An output."""

    @staticmethod
    def forward(
        ctx: Any, inside: Inside, place: int, made: torch.Tensor, *ways: torch.Tensor
    ) -> torch.Tensor:
        """The same values."""
        ctx.inside, ctx.place, ctx.ways = inside, place, len(ways)
        return made.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Keep the gradient for what it reaches."""
        ctx.inside.take(ctx.place, gradient)
        way = torch.zeros((), device=gradient.device)
        return None, None, None, *[way] * ctx.ways
