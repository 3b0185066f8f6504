"""Conversion between partitions and the placements of DTensor."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import Box
from synth.runtime.grid.dtensor_placements import boxes_of
from synth.runtime.grid.ranks import Ranks
from synth.runtime.tensor.partition import Partition


def partition_of(given: DTensor, ranks: Ranks | None = None) -> Partition:
    """The partition of a DTensor.

    ranks: those of its mesh; None to find their process group.

    Raises `ValueError` for placements other than Shard and Replicate, and for a mesh of
    other ranks.
    """
    wrong = [p for p in given.placements if type(p) not in (Shard, Replicate)]
    if wrong:
        raise ValueError(
            f"a DTensor with the placement {wrong[0]} has no boxes; redistribute it to"
            " Shard or Replicate first"
        )
    mesh = given.device_mesh.mesh.cpu()
    members = tuple(sorted(int(rank) for rank in mesh.flatten()))
    index = torch.empty_like(mesh)
    for rank in mesh.flatten().tolist():
        index[mesh == rank] = members.index(rank)
    boxes = boxes_of(index, given.placements, given.shape)
    ranks = ranks or _ranks_of(given.device_mesh, members)
    if ranks.members != members:
        raise ValueError(
            f"a DTensor on ranks {list(members)} was given where ranks"
            f" {list(ranks.members)} run; redistribute it to these"
        )
    return Partition(Layout(tuple(given.shape), tuple(boxes), ranks))


def _ranks_of(mesh: DeviceMesh, members: tuple[int, ...]) -> Ranks:
    if len(members) == dist.get_world_size():
        return Ranks.world()
    if mesh.ndim == 1:
        return Ranks.of(mesh.get_group())
    raise ValueError(
        f"a DTensor's mesh of {mesh.ndim} dimensions on ranks {list(members)} has no"
        " process group of all; give one on a mesh of one dimension, or of all ranks"
    )


def to_dtensor(local: torch.Tensor, partition: Partition) -> DTensor:
    """The DTensor with the same words on every rank.

    Raises `ValueError` if no placements give each rank its box.
    """
    mesh, placements = placements_of(partition)
    device = _device_mesh(local.device.type, mesh, partition.ranks)
    stride = torch.empty(partition.shape, device="meta").stride()
    return DTensor.from_local(
        local, device, placements, run_check=False, shape=partition.shape, stride=stride
    )


def _device_mesh(device: str, mesh: torch.Tensor, ranks: Ranks) -> DeviceMesh:
    """A mesh of these ranks, which needs no other rank of the job."""
    if ranks.size == dist.get_world_size():
        return DeviceMesh(device, mesh)
    (place,) = (mesh == ranks.rank).nonzero().tolist()
    groups, handles = ProcessGroups(ranks), []
    for dim in range(mesh.ndim):
        at: list[Any] = [*place[:dim], slice(None), *place[dim + 1 :]]
        line = [ranks.members.index(rank) for rank in mesh[tuple(at)].tolist()]
        handles.append(groups.of(line, purpose=f"DTensor, dimension {dim}"))
    names = tuple(f"dim_{dim}" for dim in range(mesh.ndim))
    return DeviceMesh.from_group(handles, device, mesh, mesh_dim_names=names)


def placements_of(partition: Partition) -> tuple[torch.Tensor, list[Any]]:
    """A mesh of ranks, and placements by which DTensor gives each rank its box.

    Raises `ValueError` if there are none. DTensor cuts a dimension as `torch.chunk`
    does, so some uneven boxes have none.
    """
    members, boxes = partition.ranks.members, partition.layout.boxes
    if not partition.refined:
        found = _grid(boxes)
        if found is not None:
            dims, places = found
            extents = [max(column) + 1 for column in zip(*places, strict=True)]
            index = torch.zeros(extents, dtype=torch.int64)
            for rank, place in enumerate(places):
                index[place] = rank
            placements: list[Any] = [Shard(dim) for dim in dims] + [Replicate()]
            if tuple(boxes_of(index, placements, partition.shape)) == boxes:
                return torch.tensor(members)[index], placements
    raise ValueError(
        f"no DTensor placements give the ranks their boxes of {tuple(partition.shape)}:"
        f" rank {members[0]} holds {boxes[0]}, rank {members[-1]} {boxes[-1]}; call"
        " full_tensor() or to_local()"
    )


def _grid(
    boxes: tuple[Box, ...],
) -> tuple[list[int], list[tuple[int, ...]]] | None:
    """The cut dimensions, and for each rank its place along them and among copies.

    None if the boxes form no grid.
    """
    dims = [dim for dim in range(len(boxes[0])) if len({b[dim] for b in boxes}) > 1]
    order = {dim: sorted({box[dim] for box in boxes}) for dim in dims}
    seen = Counter[tuple[int, ...]]()
    places = []
    for box in boxes:
        place = tuple(order[dim].index(box[dim]) for dim in dims)
        places.append((*place, seen[place]))
        seen[place] += 1
    copies = set(seen.values())
    full = len(seen)
    for dim in dims:
        full //= len(order[dim])
    if len(copies) != 1 or full != 1 or len(seen) * copies.pop() != len(boxes):
        return None
    return dims, places
