"""Whether values are finite on every rank; which ranks and which layer, where not."""

from __future__ import annotations

import torch
import torch.distributed as dist

from runtime.mesh import coordinates, grid_size, place_at


def finite_everywhere(
    name: str, role: str, values: torch.Tensor, grid: dict[str, int]
) -> None:
    """Raise `FloatingPointError` on all ranks where the values of any rank are not."""
    bad = torch.zeros(dist.get_world_size(), dtype=torch.int32, device=values.device)
    bad[dist.get_rank()] = int(not bool(torch.isfinite(values).all()))
    dist.all_reduce(bad)
    if bad.any():
        ranks = [int(rank) for rank in bad.nonzero().flatten()]
        used = grid_size(grid)
        where = ", ".join(
            f"rank {r} ({place_at(coordinates(r, grid) if r < used else None)})"
            for r in ranks
        )
        raise FloatingPointError(f"layer {name}: {role} is not finite on {where}")
