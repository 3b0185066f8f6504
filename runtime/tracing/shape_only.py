"""Normalizations and resizings of tensors without values, by their shapes.

On "meta" torch computes them step by step in Python, in each mode: half of the time of
tracing a network with many of them. A normalization has the shape and dtype of its
input, a smooth resizing those of a nearest one, which torch computes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from synth.runtime.tracing.host_calls import ON_HOST, made_on_host

SMOOTH = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}  # mode -> dims


def made_of(function: Any, args: Any, kwargs: Any) -> Any:
    """What a function gives on "meta"; on the host if torch cannot call it there.

    Where a function of `torch.nn.functional` looks at values, as a loss does to check
    its operands, it sees False: the ranks call the function as it is, with all values.
    """
    made = without_values(function, args, kwargs)
    if made is not NotImplemented:
        return made
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if "Meta kernel" in str(error):  # there is none
            made = made_on_host(function, args, kwargs)
            if made is not NotImplemented:
                return made
        own = getattr(function, "__module__", "") == functional.__name__
        if not own or "meta tensors" not in str(error):
            raise
    with _unread():
        return function(*args, **kwargs)


@contextmanager
def _unread() -> Iterator[None]:
    """Conditions on values that are not there are false."""
    place: Any = torch.Tensor
    original = place.__bool__  # of the base class

    def found(values: torch.Tensor) -> bool:
        return not values.is_meta and bool(original(values))

    place.__bool__ = found
    try:
        yield
    finally:
        del place.__bool__


def without_values(function: Any, args: Any, kwargs: Any) -> Any:
    """What a function gives on "meta", found by its shape.

    `NotImplemented` for another function, and where torch itself shall compute it: for
    arguments that it may refuse, under autocast, and where only parameters are trained.
    """
    if function in ON_HOST:
        return made_on_host(function, args, kwargs)
    known = BY_SHAPE.get(function)
    return NotImplemented if known is None else known(*args, **kwargs)


def _saving(values: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape. Autograd saves it, as for what it stands for."""
    return values.exp()


def _batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    given = [running_mean, running_var, weight, bias]
    held = [each for each in given if each is not None]
    fits = (
        isinstance(momentum, float)
        and (running_mean is None) == (running_var is None)
        and (training or running_mean is not None)
    )
    if not fits or not _per_channel(input, held):
        return NotImplemented
    if training:
        functional._verify_batch_size(list(input.size()))  # type: ignore[attr-defined]
    return _saving(input)


def _group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    held = [each for each in (weight, bias) if each is not None]
    fits = _per_channel(input, held) and num_groups > 0
    if (
        not fits
        or input.shape[1] % num_groups
        or input.numel() <= len(input) * num_groups
    ):
        return NotImplemented
    return _saving(input)


def _per_channel(input: torch.Tensor, held: list[torch.Tensor]) -> bool:
    """Whether a normalization by channels has the shape and dtype of its input."""
    fits = (
        input.dim() > 1
        and input.is_floating_point()
        and all(each.shape == input.shape[1:2] for each in held)
        and all(each.dtype == input.dtype for each in held)
    )
    graded = input.requires_grad or not any(each.requires_grad for each in held)
    return fits and graded and input.is_meta and not _autocast()


def _interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    fits = SMOOTH.get(mode) == input.dim() and input.is_floating_point()
    if not fits or antialias or not input.is_meta or _autocast():
        return NotImplemented
    return functional.interpolate(
        input, size, scale_factor, recompute_scale_factor=recompute_scale_factor
    )


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    each = reduction == "none" and log_probs.dim() == 3
    made = _saving(log_probs)
    return made.sum((0, 2)) if each else made.sum()


def _multilabel_margin_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Of one sample torch gives (1,) on "meta", but () elsewhere."""
    each = reduce is False or reduction == "none"
    if input.dim() != 1 or target.shape != input.shape or not each:
        return NotImplemented
    return _saving(input).sum()


def _autocast() -> bool:
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


BY_SHAPE: dict[Any, Callable[..., Any]] = {
    functional.batch_norm: _batch_norm,
    functional.group_norm: _group_norm,
    functional.interpolate: _interpolate,
    functional.ctc_loss: _ctc_loss,
    functional.multilabel_margin_loss: _multilabel_margin_loss,
    torch._nested_tensor_from_mask_left_aligned: lambda *_: False,
}
