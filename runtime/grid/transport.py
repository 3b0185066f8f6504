"""Transports: what carries the messages of a process group, and how it does it best.

All that depends on the backend of a group is said here, in one row for each backend.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.grid.forks import require_rank

BITS = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}


class Transport(NamedTuple):
    """What a backend of `torch.distributed` carries.

    devices: kinds of devices whose memory it sends as it is, message by message.
    dtypes: that its collectives take; None for all. Complex numbers go as pairs.
    own_collectives: whether even pieces go by its own all-gather and reduce-scatter;
        else as messages, or in one all-to-all.
    quick_all_to_all: whether ranks of one host exchange a few words, and a pair any,
        in an all-to-all sooner than by messages or by an all-gather.
    queued: whether calls wait in a queue of the device. Then messages are joined in
        one call, the calls of a group wait for each other, and all members of a group
        take part in its first call.
    interface: the environment variable that names the network interface on which it
        listens, if ranks of one host should listen on the loopback one.
    """

    devices: tuple[str, ...] = ("cpu",)
    dtypes: frozenset[torch.dtype] | None = None
    own_collectives: bool = False
    quick_all_to_all: bool = False
    queued: bool = False
    interface: str = ""

    def carried(self, values: torch.Tensor) -> torch.Tensor:
        """The same memory, as words of a dtype that collectives take."""
        if self.dtypes is None or values.dtype in self.dtypes or values.is_complex():
            return values
        return values.view(BITS[values.dtype.itemsize])


GLOO = Transport(
    dtypes=frozenset(
        {
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
            *(torch.int64, torch.int32, torch.int8, torch.uint8),
        }
    ),
    quick_all_to_all=True,
    interface="GLOO_SOCKET_IFNAME",
)
NCCL = Transport(("cuda",), own_collectives=True, queued=True)
# by torch's names. A backend that is not among them sends from the host's memory
TRANSPORTS = {"gloo": GLOO, "nccl": NCCL}


def default_backend(device: str) -> str:
    """The backend of programs: the first that sends from the memory of a device."""
    return next(name for name, each in TRANSPORTS.items() if device in each.devices)


def transport_of(group: Any, device: torch.device) -> Transport:
    """What carries a group's tensors on a device. group: None for the default one."""
    return _transports(_config(group))[device.type]


def broadcast(values: torch.Tensor, source: int, group: Any) -> None:
    """Replace values by those of a rank, a global one, on all ranks of a group.

    They may lie in another order in memory on another rank.
    """
    require_rank(group)
    alike = values.contiguous()
    carried = transport_of(group, values.device).carried(alike)
    dist.broadcast(carried, src=source, group=group)
    if alike is not values:
        values.copy_(alike)


def near(device: torch.device, group: Any) -> torch.device:
    """Where messages of a group are sent from: the device itself, else the host.

    A group of GPUs alone sends what is on the host from a GPU.
    """
    kind = _near(_config(group), device.type)
    return device if kind == device.type else torch.device(kind)


def through_host(values: torch.Tensor, group: Any) -> bool:
    """Whether messages are sent from a copy, elsewhere than the values are."""
    return near(values.device, group) != values.device


def carries_host(group: Any) -> bool:
    """Whether a group carries tensors of the host."""
    return "cpu" in _transports(_config(group))


def is_queued(group: Any) -> bool:
    """Whether a group's tensors on GPUs wait in queues; see `Transport`."""
    return any(each.queued for each in _transports(_config(group)).values())


def _config(group: Any) -> str:
    return dist.distributed_c10d.get_backend_config(group)


@cache
def _transports(config: str) -> dict[str, Transport]:
    """Kind of device -> what carries its tensors, from torch's "cpu:gloo,cuda:nccl"."""
    if ":" not in config:  # one for all kinds
        config = f"cpu:{config},cuda:{config}"
    pairs = (each.partition(":") for each in config.split(","))
    return {kind: TRANSPORTS.get(name, Transport()) for kind, _, name in pairs}


@cache
def _near(config: str, kind: str) -> str:
    """The kind of device from which tensors of a kind are sent."""
    found = _transports(config)
    if kind in found and kind in found[kind].devices:
        return kind
    return next(kind for kind, each in found.items() if kind in each.devices)
