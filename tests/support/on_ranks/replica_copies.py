"""The mesh of a network that runs in replicas, and copies of its model that do what DDP does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@cache
def mesh_of(rows: int) -> DeviceMesh:
    """Four ranks as replicas x ranks of each."""
    return init_device_mesh("cpu", (rows, 4 // rows), mesh_dim_names=("replicate", "synth"))


def share_statistics(copies: Sequence[nn.Module]) -> None:
    """Give the copies in training the buffers of the first one, as DDP does before a pass."""
    first = dict(copies[0].named_buffers())
    for each in copies[1:]:
        for key, values in each.named_buffers():
            if each.training:
                values.data.copy_(first[key])


def average_gradients(copies: Sequence[nn.Module]) -> None:
    """Give all copies the mean of their gradients. All have one for a parameter, or none has."""
    for parameters in zip(*(each.parameters() for each in copies), strict=True):
        given = [p.grad for p in parameters if p.grad is not None]
        assert len(given) in (0, len(copies))
        for p in parameters if given else ():
            p.grad = torch.stack(given).mean(0)
