"""Runs a function in forked processes, as one process or as ranks, with a limit of time.

The libraries are imported once, before the processes are forked. A process that hangs or crashes is ended,
and says so; the survey goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def forked(run: Callable[[], Result], ranks: int, seconds: float) -> Result:
    """What rank 0 returns; {"failed": reason} where a process hangs, crashes or raises.

    ranks: 0 for one process without a process group.
    """
    context = multiprocessing.get_context("fork")
    port, size = _free_port(), max(ranks, 1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [context.Pipe(False) for _ in range(size)]
        processes = [
            context.Process(target=_process, args=(run, rank, ranks, port, sender, Path(folder, f"{rank}")))
            for rank, (_, sender) in enumerate(pairs)
        ]
        for process in processes:
            process.start()
        for _, sender in pairs:
            sender.close()
        try:
            return _answer([receiver for receiver, _ in pairs], seconds)
        finally:
            _end(processes)


def _answer(pipes: list[Connection], seconds: float) -> Result:
    """The first rank's answer, or the first failure of any rank."""
    end = time.monotonic() + seconds
    waiting = dict(enumerate(pipes))
    found: dict[int, Any] = {}
    while waiting:
        left = end - time.monotonic()
        ready = multiprocessing.connection.wait(list(waiting.values()), max(left, 0))
        if not ready:
            return {"failed": f"no answer after {seconds:.0f} s"}
        for rank, pipe in list(waiting.items()):
            if pipe in ready:
                del waiting[rank]
                try:
                    found[rank] = pipe.recv()
                except EOFError:
                    found[rank] = {"failed": f"rank {rank} ended without an answer (out of memory?)"}
                if "failed" in found[rank]:
                    return dict(found[rank])
    return dict(found[0])


def _process(
    run: Callable[[], Result], rank: int, ranks: int, port: int, pipe: Connection, log: Path
) -> None:
    """One process: its output goes to a file, its answer into the pipe."""
    os.setsid()
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if ranks:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            dist.init_process_group("gloo")
        answer = run()
        if ranks:
            dist.barrier()
    except BaseException as error:
        lines = traceback.format_exc().strip().splitlines()
        first = (str(error).strip().splitlines() or [""])[0]
        answer = {
            "failed": f"{type(error).__name__}: {first}",
            "trace": lines[-8:],
        }
    pipe.send(answer)
    pipe.close()
    os._exit(0)  # without waiting for the other ranks


def _end(processes: list[Any]) -> None:
    for process in processes:
        process.join(0.2)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
