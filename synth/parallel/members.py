"""Which ranks run a network, as a user says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.base.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from synth.runtime.grid.ranks import Ranks


def ranks_of(procs: int | DeviceMesh | ProcessGroup | None) -> Ranks:
    """The ranks that `procs` of `parallelize` says.

    Raises `UsageError` for another number of ranks than run, for a mesh of several dimensions, and on a rank
    that is no member.
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
    if isinstance(procs, DeviceMesh):
        procs = _group_of(procs)
    try:
        return Ranks.of(procs)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _group_of(mesh: DeviceMesh) -> ProcessGroup:
    import torch.distributed as dist

    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        one = f'mesh["{names[-1]}"]' if names else "a mesh with names, and one of them"
        raise UsageError(f"procs is a mesh of {mesh.ndim} dimensions; give one of them, such as {one}")
    if mesh.get_coordinate() is None:
        raise UsageError(
            f"rank {dist.get_rank()} is no member of the mesh with the ranks {mesh.mesh.tolist()};"
            " only members may make and call a network on it"
        )
    return mesh.get_group()
