"""NaN in training: all ranks look together, and all raise with who has it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


def all_finite(where: str, values: torch.Tensor, place: Callable[[int], str]) -> None:
    """Raise `FloatingPointError` on every rank if any rank has NaN or infinity.

    `where` names layer and tensor, `place` says where a rank stands; all must ask.
    """
    size = dist.get_world_size()
    bad = torch.zeros(size, dtype=torch.int32, device=values.device)
    bad[dist.get_rank()] = int(not bool(torch.isfinite(values).all()))
    dist.all_reduce(bad)
    if bad.any():
        ranks = [int(rank) for rank in bad.nonzero().flatten()]
        told = ", ".join(f"rank {rank}{place(rank)}" for rank in ranks)
        raise FloatingPointError(f"layer {where} is not finite on {told}")


def watch(where: str, tensor: torch.Tensor | None, place: Callable[[int], str]) -> None:
    """Look at the gradient of a tensor when it comes."""
    if tensor is not None and tensor.requires_grad:
        tensor.register_hook(lambda g: all_finite(where, g, place))  # type: ignore[no-untyped-call]
