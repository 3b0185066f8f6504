"""Runs a function on ranks of this machine, over gloo, one thread each."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def on_ranks(ranks: int, run: Callable[..., None], *arguments: Any) -> None:
    """Call `run(*arguments)` on so many ranks of a default process group; returns when all have ended."""
    spawn(_rank, (ranks, free_port(), run, arguments), nprocs=ranks)  # type: ignore[no-untyped-call]


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def _rank(me: int, ranks: int, port: int, run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=me, world_size=ranks)
    run(*arguments)
    dist.barrier()
    dist.destroy_process_group()
