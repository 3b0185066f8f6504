"""Starts real gloo ranks quickly: a fork server has torch loaded already."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import on_device

SUPPORT = Path(__file__).parents[1]
# where processes that a test starts find the repository, and what tests import by bare name
PATHS = [str(path) for path in (SUPPORT.parents[1], SUPPORT, *sorted(SUPPORT.glob("[a-z]*/")))]
FACTS = "facts: "  # begins the line that `print_facts` writes


@dataclass(frozen=True)
class Outcome:
    """What the ranks of one program left behind."""

    codes: list[int | None]
    output: list[str]  # stdout and stderr by rank
    reports: list[dict[str, Any]]

    @property
    def facts(self) -> list[dict[str, Any]]:
        """By rank, the measurements that a function of a `*_ranks.py` file returned."""
        lines = ([line for line in said.splitlines() if line.startswith(FACTS)] for said in self.output)
        return [json.loads(each[-1].removeprefix(FACTS)) for each in lines if each]


def print_facts(facts: dict[str, Any] | None) -> None:
    """Called on a rank: hands measurements to the test, which finds them in `Outcome.facts`."""
    if facts is not None:
        print(FACTS + json.dumps(facts), flush=True)


def free_port() -> int:
    """A TCP port of this machine that is not in use."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def fork_server() -> ForkServerContext:
    """The context whose processes come from a server that has loaded `preloaded`; all tests share it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    before = os.environ.get("PYTHONPATH")  # the server finds modules by it alone
    os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [before])])
    try:
        ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def rank_main(
    program: str, rank: int, size: int, port: int, argv: list[str], log: str, variables: dict[str, str]
) -> None:
    """Be one rank of a program, as torchrun would have started it."""
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **(on_device.own_host(rank) if on_device.backend() != "gloo" else {}),
        **variables,
    }
    import torch

    torch.set_num_threads(1)
    sys.argv = [program, *argv]
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())  # which a program may have set
        sys.exit(1)


def run_ranks(
    text: str, size: int, folder: Path, *argv: str, timeout: float = 30, seconds: float = 60
) -> Outcome:
    """Run a program on `size` ranks with `--report`; ranks that do not end in time are killed."""
    program = folder / "program.py"
    program.write_text(text, encoding="utf-8")
    flags = "--report", str(folder), "--timeout", str(timeout), *on_device.flags()
    return run_file(program, size, folder, *argv, *flags, seconds=seconds)


def run_file(
    program: Path,
    size: int,
    folder: Path,
    *argv: str,
    variables: dict[str, str] | None = None,
    seconds: float = 60,
) -> Outcome:
    """The same of a file that has flags of its own. variables: of the environment of all ranks."""
    port, logs = free_port(), [folder / f"log-{rank}" for rank in range(size)]
    arguments = [
        (str(program), rank, size, port, list(argv), str(logs[rank]), variables or {}) for rank in range(size)
    ]
    codes = run_forked(rank_main, arguments, seconds)
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
    return Outcome(codes, [log.read_text() for log in logs], reports)


def run_forked(
    target: Callable[..., None], arguments: list[tuple[Any, ...]], seconds: float
) -> list[int | None]:
    """Call `target` in one process of the fork server per entry of `arguments`; their exit codes.

    When this returns, or an exception ends it, none of the processes is left.
    """
    context = fork_server()
    processes = [context.Process(target=target, args=each) for each in arguments]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(seconds)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    return [process.exitcode for process in processes]
