"""Which ranks run a network, as a user says it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from synth.base.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from synth.runtime.grid.ranks import Ranks


def ranks_of(procs: int | DeviceMesh | ProcessGroup | None) -> Ranks:
    """The ranks that `procs` of `parallelize` says, without communication.

    A mesh of two dimensions has replicas; `with_everyone` then makes their process group.

    Raises `UsageError` for another number of ranks than run, for a mesh of three or more dimensions, and on
    a rank that is no member.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from synth.runtime.grid.ranks import Ranks

    outside = procs is dist.GroupMember.NON_GROUP_MEMBER  # what `new_group` returns there: a number
    if isinstance(procs, int) and not outside:
        run = dist.get_world_size()
        if procs != run:
            raise UsageError(
                f"the model is asked for {procs} ranks, but {run} run; start as many,"
                " or give a group or a mesh"
            )
        procs = None
    mesh = procs if isinstance(procs, DeviceMesh) else None
    try:
        ranks = Ranks.of(_group_of(mesh) if mesh is not None else procs)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return ranks if mesh is None or mesh.ndim == 1 else _with_replicas(ranks, mesh)


def _with_replicas(ranks: Ranks, mesh: DeviceMesh) -> Ranks:
    """The ranks of one row of a mesh; the other rows are its replicas."""
    import torch.distributed as dist

    from synth.runtime.grid.ranks import Ranks, Replicas

    rows = tuple(tuple(sorted(row)) for row in mesh.mesh.tolist())
    if len(rows) == 1:
        return ranks
    members = tuple(sorted(rank for row in rows for rank in row))
    everyone = Ranks(members, members.index(dist.get_rank()))
    return replace(ranks, replicas=Replicas(rows, rows.index(ranks.members), everyone))


def _group_of(mesh: DeviceMesh) -> ProcessGroup:
    """The process group of the last dimension of a mesh."""
    import torch.distributed as dist

    if mesh.ndim > 2:
        names = mesh.mesh_dim_names or ()
        some = f'mesh["{names[-2]}", "{names[-1]}"]' if names else "a mesh with names, and two of them"
        raise UsageError(
            f"procs is a mesh of {mesh.ndim} dimensions; give one (the ranks of the network) or two"
            f" (replicas, and the ranks of each), such as {some}"
        )
    if mesh.get_coordinate() is None:
        raise UsageError(
            f"rank {dist.get_rank()} is no member of the mesh with the ranks {mesh.mesh.tolist()};"
            " only members may make and call a network on it"
        )
    return mesh.get_group(mesh.ndim - 1)
