"""Ranks find each other through the store that their launcher names.

Unless the launcher keeps the store, rank 0 does. A job may start groups one after the
other, and each has a store of its own on the same port. So a rank may find the store of
the group before, which rank 0 has not left yet. It waits there until that store closes,
then looks for the next. When a start is over, rank 0 leaves the store last.
"""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any

import torch.distributed as dist

from synth.runtime.grid.launched_job import (
    LOOPBACK,
    NO_ADDRESS,
    agent_store,
    has_address,
    job_name,
    on_one_host,
    store_address,
    store_place,
)
from synth.runtime.grid.liveness import Watch
from synth.runtime.grid.transport import TRANSPORTS


def meet(
    rank: int,
    size: int,
    watch: Watch | None,
    limit: datetime.timedelta,
    job: str | None = None,
) -> Any:
    """The store of this job, after the first heartbeat of this rank is in it.

    job: what tells this start from the others on the same port; None for its only one.

    Raises `RuntimeError` if the store is not found, or is that of another job, and
    `ValueError` if the launcher does not say where it is.
    """
    job = job_name() if job is None else job
    name, port, keeps = "127.0.0.1", 0, True  # a single rank meets nobody
    if size > 1:
        if not has_address():
            raise ValueError(NO_ADDRESS)
        name, port = store_address(size)
        keeps = rank == 0 and not agent_store()
        if on_one_host(size):
            _keep_messages_here()
    store = _own_store(name, port, keeps, limit, f"{job} is open")
    if watch:
        watch.connect()
    return dist.PrefixStore(job, store)  # type: ignore[attr-defined]


def _keep_messages_here() -> None:
    """Let messages go by the loopback interface, unless the user has named another."""
    for _, interface in socket.if_nameindex():
        if interface in ("lo", "lo0"):  # of Linux, of macOS
            for variable in filter(None, (t.interface for t in TRANSPORTS.values())):
                os.environ.setdefault(variable, interface)


def _own_store(
    name: str, port: int, keeps: bool, limit: datetime.timedelta, mark: str
) -> Any:
    """A connection to the store that its keeper has marked; the keeper opens it."""

    def connected() -> Any:
        store = dist.TCPStore(  # type: ignore[attr-defined,unused-ignore]
            name,
            port,
            is_master=keeps,
            timeout=limit,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=_local_listener(name, port) if keeps else None,
        )
        if keeps:
            store.set(mark, "")
        elif not agent_store():
            store.wait([mark])
        return store

    try:
        return connected()
    except dist.DistNetworkError as error:
        if keeps and "EADDRINUSE" in str(error):
            raise RuntimeError(f"another job listens on {store_place()}") from error
        if keeps or agent_store():
            raise
    return connected()  # what has closed was the store of the start before


def _local_listener(name: str, port: int) -> int | None:
    """A socket for a store that only processes of this machine are to reach.

    torch itself listens on all interfaces. None where ranks of other hosts come, and
    where the port is taken: by a store of this process, which torch shares, or not.
    """
    if name not in LOOPBACK:
        return None
    family = socket.AF_INET6 if name == "::1" else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("::1" if name == "::1" else "127.0.0.1", port))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        return None
    return listener.detach()  # the store closes it


def wait_until_all(store: Any, size: int, what: str) -> None:
    """Return when all ranks have called this for `what`, once; O(1) calls each."""
    _count_in(store, size, what)
    store.wait([f"all {what}"])


def part(store: Any, rank: int, size: int) -> None:
    """Say that this rank needs the store no more; rank 0, which may keep it, waits."""
    _count_in(store, size, "through")
    if rank == 0:
        store.wait(["all through"])


def _count_in(store: Any, size: int, what: str) -> None:
    if store.add(f"ranks {what}", 1) == size:
        store.set(f"all {what}", "")
