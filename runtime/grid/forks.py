"""A process that was forked from a rank is no rank, although it has all its memory.

It shares the connections of the rank: what it sent would be taken for words of the
rank, and what it read would be lost to it.
"""

from __future__ import annotations

import os
import weakref
from functools import cache
from typing import Any

import torch.distributed as dist


class Fork:
    """Whether this process was forked from a rank of several.

    why: it is none; "" for a rank. world: refers to the default group of that rank.
    """

    why = ""
    world: Any = None


@cache
def mind_forks() -> None:
    """Let processes that are forked from this one know it from now on."""
    os.register_at_fork(after_in_child=_leave_job)


def require_rank(group: Any = None) -> None:
    """Raise `RuntimeError` in a process that was forked from a rank of a group.

    It may make a default group of its own. group: torch's; None for the default one.
    """
    if Fork.why and Fork.world() is dist.group.WORLD and dist.get_world_size(group) > 1:
        raise RuntimeError(Fork.why)


def _leave_job() -> None:
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return
    Fork.world = weakref.ref(dist.group.WORLD)
    Fork.why = (
        f"this process was forked from rank {dist.get_rank()} after a network was made,"
        " and shares the connections of the rank; use the network in the rank itself,"
        " not in a child such as a worker of a DataLoader"
    )
