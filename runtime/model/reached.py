"""Gradients of compiled steps: of what the gradients of outputs reach, as in torch.

A compiled backward pass takes zeros for an output that a loss does not use. Parameters
and inputs that no other output depends on would get zeros from it, where autograd
leaves their gradients as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class Reached:
    """What is between a compiled pass and autograd, for one forward pass.

    reach: place of an output -> the places of given tensors that its gradient reaches.
    now: those that are reached in the backward pass that runs.
    """

    def __init__(self, reach: Mapping[int, Collection[int]]) -> None:
        self.reach, self.now = reach, set[int]()

    def given(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The given tensors, whose gradients are kept if they are reached."""
        return self._through(Given, tensors, set[int]().union(*self.reach.values()))

    def made(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs, of which those with a gradient are noted."""
        return self._through(Made, tensors, self.reach)

    def _through(
        self,
        node: type[torch.autograd.Function],
        tensors: Sequence[torch.Tensor],
        places: Collection[int],
    ) -> list[torch.Tensor]:
        found, own = list(tensors), sorted(places)
        if own:
            some: Any = node.apply(self, own, *(found[place] for place in own))  # type: ignore[no-untyped-call]
            for place, each in zip(own, some, strict=True):
                found[place] = each
        return found


class Given(torch.autograd.Function):
    """The given tensors. Its backward pass is behind the compiled one."""

    @staticmethod
    def forward(
        ctx: Any, reached: Reached, places: Sequence[int], *given: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The same values."""
        ctx.reached, ctx.places = reached, places
        ctx.set_materialize_grads(False)
        return tuple(each.detach() for each in given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """The same gradients; None for what is not reached."""
        now, pairs = ctx.reached.now, zip(ctx.places, gradients, strict=True)
        return None, None, *(each if place in now else None for place, each in pairs)


class Made(torch.autograd.Function):
    """The outputs. Its backward pass is before the compiled one."""

    @staticmethod
    def forward(
        ctx: Any, reached: Reached, places: Sequence[int], *made: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The same values."""
        ctx.reached, ctx.places = reached, places
        ctx.set_materialize_grads(False)
        return tuple(each.detach() for each in made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """The same gradients."""
        pairs = zip(ctx.places, gradients, strict=True)
        outs = [place for place, each in pairs if each is not None]
        ctx.reached.now = set().union(*(ctx.reached.reach[place] for place in outs))
        return None, None, *gradients
