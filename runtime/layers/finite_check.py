"""NaN and infinity in training: all ranks check together and raise alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


def require_finite(
    where: str, values: torch.Tensor, place: Callable[[int], str]
) -> None:
    """Raise `FloatingPointError` on every rank if any rank has NaN or infinity.

    All ranks must call this. `where` names the layer and the tensor, `place` returns
    the text that follows a rank's number.
    """
    size = dist.get_world_size()
    bad = torch.zeros(size, dtype=torch.int32, device=values.device)
    bad[dist.get_rank()] = int(not bool(torch.isfinite(values).all()))
    dist.all_reduce(bad)
    if bad.any():
        ranks = [int(rank) for rank in bad.nonzero().flatten()]
        named = ", ".join(f"rank {rank}{place(rank)}" for rank in ranks)
        raise FloatingPointError(f"layer {where} is not finite on {named}")


def check_gradient(
    where: str, tensor: torch.Tensor | None, place: Callable[[int], str]
) -> None:
    """Call `require_finite` with the gradient of a tensor, if it gets one."""
    if tensor is not None and tensor.requires_grad:
        tensor.register_hook(lambda g: require_finite(where, g, place))  # type: ignore[no-untyped-call]
