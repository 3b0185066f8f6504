"""The two collectives of tensor parallelism, along any dimension, in equal parts.

On gloo, a reduce-scatter moves as much as an all-reduce. An all-to-all and a local sum move half of that and
are faster, so the hand-written peers use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Finish = Callable[[], torch.Tensor]
# the newer name of the same collective, where torch has it
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def gathering(share: torch.Tensor, dim: int, group: Any = None) -> Finish:
    """Start to gather equal parts along a dimension; the returned function waits and gives the whole."""
    parts = dist.get_world_size(group)
    if parts == 1:
        return lambda: share
    arriving = share.new_empty(parts, *share.shape)
    request = all_gather(arriving.view(-1), share.contiguous().view(-1), group=group, async_op=True)

    def finish() -> torch.Tensor:
        request.wait()
        return arriving.movedim(0, dim).flatten(dim, dim + 1)  # no copy along dimension 0

    return finish


def scattering(terms: torch.Tensor, dim: int, group: Any = None) -> Finish:
    """Start a reduce-scatter along a dimension; the returned function waits and gives this rank's part."""
    parts = dist.get_world_size(group)
    if parts == 1:
        return lambda: terms
    sizes = *terms.shape[:dim], parts, terms.shape[dim] // parts, *terms.shape[dim + 1 :]
    leaving = terms.view(sizes).movedim(dim, 0).contiguous()
    arriving = torch.empty_like(leaving)
    request = dist.all_to_all_single(arriving.view(-1), leaving.view(-1), group=group, async_op=True)

    def finish() -> torch.Tensor:
        request.wait()
        return arriving.sum(0)

    return finish
