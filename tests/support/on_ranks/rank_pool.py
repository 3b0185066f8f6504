"""Real gloo ranks that stay: a test calls functions on all of them and looks at what each returns.

    ranks = pool_of(__file__, "model_ranks.py", 4)

    def test_training(ranks: RankPool) -> None:
        for result in ranks.call("train", "residual", None):
            assert result["error"] < 1e-4

The functions stand in a module beside the test. A process of the fork server imports it and forks the ranks.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import on_device
import pytest
from fair_clock import FairClock
from ranks import fork_server, free_port


class RankPool:
    """Some ranks of one process group. They start with the first call, and anew after a failed one."""

    def __init__(
        self, module: Path, size: int, folder: Path, variables: dict[str, str] | None = None
    ) -> None:
        self.module, self.size, self.folder, self.variables = module, size, folder, variables or {}
        self.process: ForkServerProcess | None = None
        self.pipes: list[Connection] = []
        self.read = 0  # characters of rank 0's output that `said` has given

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *fault: object) -> None:
        self.stop()

    def call(self, function: str, *args: Any, seconds: float = 280) -> list[Any]:
        """What a function of the module returns, by rank. Fails with all output where a rank does."""
        if self.process is None:
            self._start()
        for pipe in self.pipes:
            pipe.send((function, args))
        clock, results = FairClock(), []
        for rank, pipe in enumerate(self.pipes):
            done, result = False, f"no answer after {seconds} s"
            while not (ready := pipe.poll(1.0)) and clock.seconds() < seconds:
                pass
            if ready:
                try:
                    done, result = pipe.recv()
                except EOFError:
                    result = "the rank ended"
            if not done:
                self._tell_where()
                self.stop()
                logs = [path.read_text() for path in sorted(self.folder.glob("log-*"))]
                raise AssertionError("\n".join([f"rank {rank}: {result}", *logs]))
            results.append(result)
        return results

    def _tell_where(self) -> None:
        """Let ranks that do not answer write to their logs where all their threads are."""
        if self.process is not None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGUSR2)
                time.sleep(1)

    def said(self) -> str:
        """What rank 0 printed since this was last asked."""
        text = (self.folder / "log-0").read_text()
        fresh, self.read = text[self.read :], len(text)
        return fresh

    def stop(self) -> None:
        """End the ranks."""
        for pipe in self.pipes:
            pipe.close()  # which ends the ranks that wait for a call
        self.pipes, process, self.process = [], self.process, None
        if process is None:
            return
        process.join(20)
        if process.exitcode is None:
            assert process.ident is not None
            os.killpg(process.ident, signal.SIGKILL)
            process.join()

    def _start(self) -> None:
        context = fork_server()
        pairs = [context.Pipe() for _ in range(self.size)]
        self.pipes, self.read = [mine for mine, _ in pairs], 0
        theirs = [other for _, other in pairs]
        process = context.Process(
            target=fork_ranks, args=(self.module, free_port(), self.folder, theirs, self.variables)
        )
        process.start()
        self.process = process
        for other in theirs:
            other.close()


class RankPools:
    """Pools of several sizes with the functions of one module: `pools(4)` are four ranks."""

    def __init__(self, module: Path, folder: Path) -> None:
        self.module, self.folder = module, folder
        self.pools: dict[int, RankPool] = {}

    def __enter__(self) -> RankPools:
        return self

    def __exit__(self, *fault: object) -> None:
        for pool in self.pools.values():
            pool.stop()

    def __call__(self, size: int) -> RankPool:
        if size not in self.pools:
            folder = self.folder / str(size)
            folder.mkdir()
            self.pools[size] = RankPool(self.module, size, folder)
        return self.pools[size]


def pool_of(test: str, module: str, size: int) -> Any:
    """A fixture: ranks that stay for the tests of a file. module: the name of the one beside it."""

    @pytest.fixture(scope="module")
    def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
        with RankPool(Path(test).with_name(module), size, tmp_path_factory.mktemp("ranks")) as made:
            yield made

    return pool


def exact(found: list[dict[str, float]], *names: str) -> None:
    """Assert that what each rank returned, errors by name, is what one process has, to rounding."""
    for rank, errors in enumerate(found):
        assert set(names) <= set(errors)
        assert max(errors.values()) < 1e-8, f"rank {rank}: {errors}"


def serve(module: Any, rank: int, size: int, port: str, folder: str, pipe: Connection) -> None:
    """Be one rank: run what is called until the pipe closes."""
    with open(Path(folder, f"log-{rank}"), "w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR2, file=2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    on_device.enter(rank)
    dist.init_process_group(on_device.backend())
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            break
        try:
            answer = True, getattr(module, function)(*args)
            dist.barrier()
        except BaseException:
            answer = False, traceback.format_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.send(answer)
    os._exit(0)  # without waiting for the other ranks


def fork_ranks(
    path: Path, port: int, folder: Path, pipes: list[Connection], variables: dict[str, str]
) -> None:
    """Import the module, and become the parent of one rank for every pipe. variables: of the environment."""
    os.setsid()
    os.environ |= variables
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if hasattr(module, "preload"):
        module.preload()
    gc.freeze()  # so that collections do not copy these objects to every rank
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=serve_one, args=(module, rank, pipes, str(port), str(folder)))
        for rank in range(len(pipes))
    ]
    for each in ranks:
        each.start()
    for pipe in pipes:
        pipe.close()
    for each in ranks:
        each.join()
    os._exit(0)  # the libraries take seconds to end


def serve_one(module: Any, rank: int, pipes: list[Connection], port: str, folder: str) -> None:
    """The same with the pipes of the other ranks closed, so that each sees its own one close."""
    for other, pipe in enumerate(pipes):
        if other != rank:
            pipe.close()
    serve(module, rank, len(pipes), port, folder, pipes[rank])
