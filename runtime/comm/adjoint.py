"""Exchanges between ranks as autograd knows them: linear maps with adjoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Linear = Callable[[torch.Tensor], torch.Tensor]


def with_adjoint(values: torch.Tensor, there: Linear, back: Linear) -> torch.Tensor:
    """What a linear map makes of a tensor; differentiable once.

    back: the adjoint, from the gradient of the result to that of `values`. It lives as
        long as the graph, so it holds layouts and no tensors.
    """
    made: torch.Tensor = WithAdjoint.apply(values, there, back)  # type: ignore[no-untyped-call]
    return made


def same(values: torch.Tensor) -> torch.Tensor:
    """The same words, as a tensor of its own for autograd."""
    return values.view_as(values)


def tied(made: torch.Tensor, *values: torch.Tensor | None) -> torch.Tensor:
    """The same words. The backward pass reaches `values`, too, with gradients of zero.

    So exchanges before them are made on every rank.
    """
    for each in values:
        if each is not None and each.requires_grad:
            made = made + each.flatten()[:0].sum()
    return made


class WithAdjoint(torch.autograd.Function):
    """A linear map; gradients pass through its adjoint."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, there: Linear, back: Linear
    ) -> torch.Tensor:
        """The image of the values."""
        ctx.back = back
        return there(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient of the values."""
        return ctx.back(gradient), None, None
