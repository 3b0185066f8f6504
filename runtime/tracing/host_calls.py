"""Calls on the host while a model is recorded, in the place of calls on "meta".

A tensor that a module has as a plain attribute, such as strides and anchors of a
detector, keeps its values, as does what is computed from such tensors alone. So Python
may read them, loop over them, and give them as numbers. Parameters, buffers, and what
depends on the input have shapes alone.

Some functions look at values, as `torch.cov` does to check weights, or have no kernel
for "meta". The shapes that they give are found with several values for each tensor. A
shape that depends on them is not known before the values are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from synth.runtime.rules.rule import is_trainable
from synth.runtime.tracing.expressions import DRAWS
from synth.runtime.tracing.recorded import mapped, tensors_in

# methods that read values in Python, without the _ of their names
READS = {"item", "tolist", "bool", "int", "float", "index", "complex"}
MOST = 2**24  # words that are worth a call on the host
Filler = Callable[[torch.Tensor], torch.Tensor]


# -- values that are there -------------------------------------------------------------


def has_values(word: str, given: Any) -> bool:
    """Whether a call of a function has tensors as arguments, and all their values."""
    tensors = list(tensors_in(given))
    if not tensors or word in DRAWS:
        return False
    return not any(each.is_meta for each in tensors)


def on_host(given: Any) -> Any:
    """Arguments with the host in the place of the device without values."""
    if isinstance(given, torch.device) and given.type == "meta":
        return torch.device("cpu")
    if isinstance(given, str) and given == "meta":
        return "cpu"
    if isinstance(given, torch.Tensor):
        return given
    return mapped(on_host, given)


# -- values that are not there ---------------------------------------------------------


def _mixed(like: torch.Tensor) -> torch.Tensor:
    """Zeros and ones by turns; of floating-point numbers, all of them others."""
    count = torch.arange(like.numel())
    floats = is_trainable(like)
    return (1 / (2.0 + count) if floats else count % 2).reshape(like.shape)


def _large(like: torch.Tensor) -> torch.Tensor:
    """Numbers of which none is an index, so that counts of values are long."""
    return (1000.0 + torch.arange(like.numel())).reshape(like.shape)


FILLERS: tuple[Filler, ...] = (
    lambda like: torch.zeros(like.shape),
    lambda like: torch.ones(like.shape),
    _mixed,
    _large,
)
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
    layouts = {getattr(each, "layout", None) for each in leaves}
    if layouts != {torch.strided}:  # nothing, sparse tensors, or no tensors
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
