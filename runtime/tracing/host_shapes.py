"""Shapes of what functions give that torch cannot call on "meta".

Some functions look at values in between, as `torch.cov` does to check weights, or have
no kernel for "meta". What they give is then found by calls on the host, with several
values for each tensor. A shape that depends on them is not known before the values are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from synth.runtime.tracing.recorded import tensors_in

MOST = 2**24  # words that are worth a call on the host
Filler = Callable[[torch.Tensor], torch.Tensor]


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.shape)


def _ones(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(like.shape)


def _mixed(like: torch.Tensor) -> torch.Tensor:
    """Zeros and ones by turns; of floating-point numbers, all of them others."""
    count = torch.arange(like.numel())
    floats = like.is_floating_point() or like.is_complex()
    return (1 / (2.0 + count) if floats else count % 2).reshape(like.shape)


FILLERS: tuple[Filler, ...] = (_zeros, _ones, _mixed)
# those that look at values, or pick words by a mask of which the shape is known
ON_HOST: set[Any] = {torch.cov, torch.corrcoef, torch.combinations}
ON_HOST |= {torch.Tensor.cov, torch.Tensor.corrcoef}


def made_on_host(function: Any, args: Any, kwargs: Any) -> Any:
    """What a function gives on "meta", found by calls with values.

    `NotImplemented` where it gives no tensors, where fewer than two calls succeed, or
    where shapes or dtypes differ between them.
    """
    if sum(each.numel() for each in tensors_in((args, kwargs))) > MOST:
        return NotImplemented
    found: list[Any] = []
    for fill in FILLERS:
        try:
            with torch._C.DisableTorchFunction(), torch.device("cpu"):
                found.append(function(*_filled(args, fill), **_filled(kwargs, fill)))
        except Exception:  # values that the function refuses
            continue
    if len(found) < 2 or len({_kind(each) for each in found}) > 1:
        return NotImplemented
    leaves = _pytree.tree_leaves(found[0])
    if not leaves or not all(isinstance(each, torch.Tensor) for each in leaves):
        return NotImplemented
    trained = [each.sum() for each in tensors_in((args, kwargs)) if each.requires_grad]

    def on_meta(each: torch.Tensor) -> torch.Tensor:
        empty = torch.empty(each.shape, dtype=each.dtype, device="meta")
        return sum(trained, empty).to(each.dtype) if each.requires_grad else empty

    return _with(found[0], on_meta)


def _filled(given: Any, fill: Filler) -> Any:
    """Arguments with values, which ask for gradients where they did."""
    return _with(
        given, lambda each: fill(each).to(each.dtype).requires_grad_(each.requires_grad)
    )


def _with(given: Any, change: Filler) -> Any:
    return _pytree.tree_map(
        lambda each: change(each) if isinstance(each, torch.Tensor) else each, given
    )


def _kind(made: Any) -> str:
    """Structure, shapes and dtypes of a result."""
    leaves, spec = _pytree.tree_flatten(made)
    shown = [
        (tuple(each.shape), str(each.dtype)) if isinstance(each, torch.Tensor) else each
        for each in leaves
    ]
    return f"{spec} {shown}"
