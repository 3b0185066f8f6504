"""The hosts of ranks: which pairs share one, and reach each other through memory."""

from __future__ import annotations

import datetime
import os
import weakref
from typing import Any, NamedTuple

import torch.distributed as dist

from synth.runtime.grid.launched_job import ranks_here, usable_cores
from synth.runtime.grid.ranks import timeout_of

_pairs: weakref.WeakKeyDictionary[Any, Pair] = weakref.WeakKeyDictionary()


class Pair(NamedTuple):
    """Whether a group is one of two ranks of one host, and if each has a core there."""

    near: bool
    roomy: bool


def host_here() -> tuple[str, str]:
    """What tells this rank's host from others: its name, and its number in the job.

    Emulated hosts have one name. Launchers number the hosts that they start.
    """
    number = os.environ.get("GROUP_RANK") or os.environ.get("SLURM_NODEID") or ""
    return os.uname().nodename, number


def is_near_pair(group: Any) -> bool:
    """Whether a group is one of two ranks that share a host, and have a core each.

    If ranks outnumber the cores of the host, threads of a collective would wait for a
    core once more than those of a message.
    """
    return all(pair_of(group))


def pair_of(group: Any) -> Pair:
    """Whether a group is one of two ranks that share a host; the same on both.

    group: torch's; None for the default one. Both ranks must ask once: they tell each
    other in the job's store, and wait at most for the timeout of the group.

    Raises `RuntimeError` if the other rank does not come.
    """
    known: Any = dist.group.WORLD if group is None else group
    if known not in _pairs:
        _pairs[known] = _asked(known)
    return _pairs[known]


def _asked(group: Any) -> Pair:
    members = dist.get_process_group_ranks(group)
    if len(members) != 2:
        return Pair(False, False)
    me = dist.get_rank()
    (other,) = set(members) - {me}
    store, name = dist.distributed_c10d._get_default_store(), "synth/host/{}".format
    room = usable_cores() >= ranks_here(dist.get_world_size() - 1)
    here = " ".join(host_here())
    store.set(name(me), f"{here} {'roomy' if room else 'crowded'}")
    try:
        store.wait([name(other)], datetime.timedelta(seconds=timeout_of(group)))
    except dist.DistStoreError as error:
        raise RuntimeError(
            f"rank {other} did not come to say on which host it is; both ranks of a"
            " group must communicate in it"
        ) from error
    there, _, said = store.get(name(other)).decode().rpartition(" ")
    return Pair(there == here, room and said == "roomy")
