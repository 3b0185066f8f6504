"""The mesh of a network that runs in replicas."""

from __future__ import annotations

from functools import cache

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@cache
def mesh_of(rows: int) -> DeviceMesh:
    """Four ranks as replicas x ranks of each."""
    return init_device_mesh("cpu", (rows, 4 // rows), mesh_dim_names=("replicate", "synth"))
