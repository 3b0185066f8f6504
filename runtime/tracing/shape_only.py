"""Normalizations and resizings of tensors without values, by their shapes.

On "meta" torch computes them step by step in Python, in each mode: half of the time of
tracing a network with many of them. A normalization has the shape and dtype of its
input, a smooth resizing those of a nearest one, which torch computes at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

SMOOTH = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}  # mode -> dims


def without_values(function: Any, args: Any, kwargs: Any) -> Any:
    """What a function gives on "meta", found by its shape.

    `NotImplemented` for another function, and where torch itself shall compute it: for
    arguments that it may refuse, under autocast, and where only parameters are trained.
    """
    if function is functional.batch_norm:
        return _batch_norm(*args, **kwargs)
    if function is functional.group_norm:
        return _group_norm(*args, **kwargs)
    if function is functional.interpolate:
        return _interpolate(*args, **kwargs)
    return NotImplemented


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
    return input.clone()


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
    return input.clone()


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


def _autocast() -> bool:
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
