"""A network that only infers: its weights lie where the forward pass reads them.

Each rank holds the slices of the weights that it uses, as the partition of the
parameters. There is no second copy: what `load_state_dict` or an assignment in place
changes is what the next forward pass reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from synth.runtime.rules.rule import is_trainable

REFUSED = (
    "the network was parallelized with mode='inference': it has no gradients, since its"
    " weights lie where the forward pass reads them; parallelize the model without"
    " mode='inference' to train it"
)


def asks_gradient(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a forward pass in one process would record a graph from these tensors."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def without_gradient(made: torch.Tensor) -> torch.Tensor:
    """An output whose backward pass raises `RuntimeError`, which says what to do."""
    if not is_trainable(made):
        return made
    asked = torch.zeros((), device=made.device, requires_grad=True)
    out: torch.Tensor = NoGradient.apply(made, asked)  # type: ignore[no-untyped-call]
    return out


class NoGradient(torch.autograd.Function):
    """The same values; the backward pass is refused."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """The same values."""
        return made.view_as(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        """Raise `RuntimeError`."""
        raise RuntimeError(REFUSED)
