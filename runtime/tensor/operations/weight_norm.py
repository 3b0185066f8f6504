"""Weight normalization of partitioned tensors: a direction times a length per filter.

w = g · v / |v|, where |v| is the norm over all dimensions but one (Salimans and Kingma,
2016). torch computes it in kernels of its own; here it is made of sums over ranks and
of pointwise operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from synth.runtime.tensor.operations.operands import argument


def norm(func: Any, args: Any, kwargs: Any) -> Any:
    """The older `norm`, by `linalg.vector_norm`."""
    names = {each.name for each in func._schema.arguments}
    order = argument(func, args, kwargs, "p")
    dims = argument(func, args, kwargs, "dim") if "dim" in names else None
    keep = "keepdim" in names and bool(argument(func, args, kwargs, "keepdim"))
    dtype = argument(func, args, kwargs, "dtype") if "dtype" in names else None
    order = 2 if order is None else order
    return torch.linalg.vector_norm(args[0], order, dims, keep, dtype=dtype)


def normalized(func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight, and the norms of the direction."""
    direction, length = args[0], args[1]
    dims = _others(direction, int(argument(func, args, kwargs, "dim")))
    norms = torch.linalg.vector_norm(direction, 2, dims, True)
    return direction * (length / norms), norms


def gradients(func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of direction and length: dg = s / |v|, dv = g / |v| (dw − v s / |v|²).

    s is the sum of dw · v over all dimensions but one.
    """
    gradient, direction, length, norms = args[:4]
    dims = _others(direction, int(argument(func, args, kwargs, "dim")))
    sums = (gradient * direction).sum(dims, keepdim=True)
    straight = gradient - direction * (sums / norms.square())
    return straight * (length / norms), sums / norms


def _others(values: torch.Tensor, dim: int) -> list[int]:
    return [each for each in range(values.dim()) if each != dim % values.dim()]


RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "norm": norm,
    "_weight_norm_interface": normalized,
    "_weight_norm_interface_backward": gradients,
}
