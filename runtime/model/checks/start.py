"""The start of a training job: ranks join, and those that do not come are named."""

from __future__ import annotations

import datetime
import itertools
import sys
import threading
from typing import Any

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from synth.runtime.grid.heartbeats import STORE_FAULTS
from synth.runtime.grid.launched_job import job_name, launched, reason_of
from synth.runtime.grid.liveness import Watch
from synth.runtime.grid.meeting import meet, part, wait_until_all

STARTS = itertools.count()  # of this process; all ranks start together


def init_process_group(
    backend: str | None = None,
    timeout: datetime.timedelta | None = None,
    **options: Any,
) -> None:
    """Make the default process group of torch as torchrun or srun started the ranks.

    The group is that of `torch.distributed.init_process_group`. The ranks watch each
    other until all have joined. If one ends, is stopped or does not come, the others
    print which one it is and end with code 6. Without a launcher this is a job of one
    rank. torchrun says where the ranks meet. srun does not: the batch script exports
    MASTER_ADDR and MASTER_PORT (docs/longjobs.md has the lines).

    backend: as for torch; None for all backends that torch has on this machine.
    timeout: of the start, and of every collective of the group; None for torch's.
    options: others of torch's function, such as `device_id`.

    Raises `ValueError` for options that the launcher says, and where several ranks have
    no address to meet at. Raises `RuntimeError` if there is a default group, or outside
    of the main thread.
    """
    given = {"init_method", "store", "rank", "world_size"} & options.keys()
    if given:
        raise ValueError(
            f"{', '.join(sorted(given))}: the launcher says it; leave it out, or call"
            " torch.distributed.init_process_group"
        )
    if dist.is_initialized():
        raise RuntimeError(
            "there is a default process group; call init_process_group once, or"
            " destroy_process_group() before"
        )
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "init_process_group catches signals while the ranks meet, so call it in"
            " the main thread"
        )
    rank, size, _ = launched()
    limit, hook = timeout or default_pg_timeout, sys.excepthook
    job = f"{job_name()}/start {next(STARTS)}"
    watch = None
    if size > 1:
        seconds = limit.total_seconds()
        watch = Watch(rank, size, "rank {}".format, False, seconds, job)
        watch.begin()
        sys.excepthook = hook  # an error of another kind is raised here
    try:
        store = meet(rank, size, watch, limit, job)
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=size,
            timeout=timeout,
            **options,
        )
        wait_until_all(store, size, "here")
        if watch is not None:
            watch.meet()  # from now on a rank may end
            if rank:
                watch.finish()  # rank 0 may close the store when all are through
        part(store, rank, size)
    except STORE_FAULTS as error:
        if watch is None or isinstance(error, ValueError):
            raise
        watch.end(f"did not find the others: {reason_of(error)}")
    finally:
        if watch is not None:
            watch.leave()
