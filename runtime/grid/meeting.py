"""Ranks find each other through the store that their launcher names."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from synth.runtime.grid.launched_job import job_name, store_place
from synth.runtime.grid.liveness import Watch


def meet(rank: int, size: int, watch: Watch | None, limit: datetime.timedelta) -> Any:
    """The store of this job, after the first heartbeat of this rank is in it.

    Raises `RuntimeError` if the store is not found, or is that of another job.
    """
    # A single rank meets nobody: any port will do.
    url = "env://" if size > 1 else "tcp://127.0.0.1:0"
    try:
        store, _, _ = next(rendezvous(url, rank, size, timeout=limit))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise RuntimeError(f"another job listens on {store_place()}") from error
    if watch:
        watch.connect()
    return dist.PrefixStore(job_name(), store)  # type: ignore[attr-defined]
