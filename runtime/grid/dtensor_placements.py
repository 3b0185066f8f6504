"""Ownership as DTensor placements: Shard or Replicate along the axes of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from synth.runtime.grid.boxes import Box
from synth.runtime.grid.process_grid import At, coordinates, grid_size


def boxes_of(
    mesh: torch.Tensor, places: Sequence[Any], whole: Sequence[int]
) -> list[Box]:
    """The box of every rank in a mesh, as DTensor cuts: ceil-sized chunks by axis."""
    boxes: list[Box] = [()] * mesh.numel()
    for place in torch.ones_like(mesh).nonzero().tolist():
        box = [(0, extent) for extent in whole]
        for axis, placement in enumerate(places):
            if isinstance(placement, Shard):
                low, high = box[placement.dim]
                size = -(-(high - low) // mesh.shape[axis])
                first = min(high, low + place[axis] * size)
                box[placement.dim] = (first, min(high, first + size))
        boxes[int(mesh[tuple(place)])] = tuple(box)
    return boxes


def placements_of(
    name: str,
    tensor: str,
    owned: Callable[[At], Box],
    whole: Sequence[int],
    grid: dict[str, int],
    device: str,
) -> tuple[DeviceMesh, list[Placement]]:
    """A mesh over all ranks, and placements that give each rank the box that it owns.

    Raises `ValueError` if there are none. All ranks of the mesh must call this.
    """
    ranks = grid_size(grid)
    wanted = [owned(coordinates(rank, grid)) for rank in range(ranks)]
    cut: dict[str, list[int]] = {}  # axis -> the dimensions that it cuts
    for axis in grid:
        ends = [owned({**dict.fromkeys(grid, 0), axis: i}) for i in (0, grid[axis] - 1)]
        cut[axis] = [
            dim for dim, (a, b) in enumerate(zip(*ends, strict=True)) if a != b
        ]
    if all(len(dims) < 2 for dims in cut.values()):
        plain = torch.arange(ranks).reshape(tuple(grid.values()) or (1,))
        for order in permutations(range(len(grid))):
            mesh = plain.permute(order) if grid else plain
            names = [list(grid)[axis] for axis in order]
            places: list[Placement] = [
                Shard(cut[axis][0]) if cut[axis] else Replicate() for axis in names
            ] or [Replicate()]
            if boxes_of(mesh, places, whole) == wanted:
                named = tuple(names) or ("one",)
                return DeviceMesh(device, mesh, mesh_dim_names=named), places
    raise ValueError(
        f"{name}: no DTensor placements say who owns {tensor} of shape {tuple(whole)}:"
        f" rank 0 owns {wanted[0]}, rank {ranks - 1} {wanted[-1]};"
        " give and take local shards"
    )


def require_placements(
    name: str, whole: DTensor, owned: Callable[[At], Box], grid: dict[str, int]
) -> None:
    """Raise `ValueError` on all ranks unless a DTensor has In where it is owned."""
    ranks = grid_size(grid)
    have = boxes_of(whole.device_mesh.mesh.cpu(), whole.placements, whole.shape)
    wanted = [owned(coordinates(rank, grid)) for rank in range(ranks)]
    partial = any(not isinstance(p, Shard | Replicate) for p in whole.placements)
    if have == wanted and not partial:
        return
    pairs = enumerate(zip(have, wanted, strict=False))
    rank = next((rank for rank, (a, b) in pairs if a != b), 0)
    there = have[rank] if rank < len(have) else ()
    raise ValueError(
        f"{name}: the DTensor with {whole.placements} gives rank {rank} the box {there}"
        f" of In, but it owns {wanted[rank]}; redistribute to `layer.placements('In')`"
    )
