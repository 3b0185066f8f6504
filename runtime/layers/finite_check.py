"""NaN and infinity in training: all ranks check together and raise alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from synth.runtime.grid.ranks import Ranks


def require_finite(
    where: str, values: torch.Tensor, place: Callable[[int], str], ranks: Ranks
) -> None:
    """Raise `FloatingPointError` on every rank if any rank has NaN or infinity.

    All ranks must call this. `where` names the layer and the tensor, `place` returns
    the text that follows the number of the rank with an index.
    """
    bad = torch.zeros(ranks.size, dtype=torch.int32, device=values.device)
    bad[ranks.me] = int(not bool(torch.isfinite(values).all()))
    dist.all_reduce(bad, group=ranks.group)
    if bad.any():
        found = [int(index) for index in bad.nonzero().flatten()]
        named = ", ".join(f"rank {ranks.members[i]}{place(i)}" for i in found)
        raise FloatingPointError(f"layer {where} is not finite on {named}")


def check_gradient(
    where: str,
    tensor: torch.Tensor | None,
    place: Callable[[int], str],
    ranks: Ranks,
) -> None:
    """Call `require_finite` with the gradient of a tensor, if it gets one."""
    if tensor is not None and tensor.requires_grad:
        tensor.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: require_finite(where, gradient, place, ranks)
        )
