"""Functions of torch that are recorded as the calls of which they consist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from synth.runtime.tracing.attention import multi_head_attention

# of the second tensor only shape or dtype counts, so its words need not move
PARTS: dict[Any, Callable[..., Any]] = {
    functional.multi_head_attention_forward: multi_head_attention,
    torch.Tensor.type_as: lambda given, other: given.to(other.dtype),
    torch.Tensor.expand_as: lambda given, other: given.expand(other.shape),
    torch.Tensor.view_as: lambda given, other: given.view(other.shape),
    torch.Tensor.reshape_as: lambda given, other: given.reshape(other.shape),
}


def composed(function: Any) -> Callable[..., Any] | None:
    """What makes the calls of which a function consists; None for any other function.

    It takes the same arguments. It returns `NotImplemented` for those that it does not
    know.
    """
    try:
        return PARTS.get(function)
    except TypeError:  # a function that has no hash
        return None
