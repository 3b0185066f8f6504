"""Ranks that stay: each case is given to all of them, and what they answer becomes one outcome.

They are forks of a process that has loaded everything. After a case that fails, hangs, or ends a rank they
start anew.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.judges.cases import CRASH, REFUSED, Outcome, worst
from benchmarks.judges.one_case import judged

GRACE = 5.0  # seconds that ranks have to answer after one that failed
MOST = 400  # cases until the ranks start anew
FRAME = re.compile(r'File "[^"]*?([^"/]+/[^"/]+\.py)", line (\d+) in (\w+)')
OWN = re.compile(r'File "[^"]*?/((?:runtime|synth|codegen)/[^"]+)", line (\d+) in (\w+)')


class Pool:
    """Some ranks. seconds: the limit of time of a case. judge: what each rank does with one."""

    def __init__(self, size: int, seconds: float, judge: Callable[[Any], dict[str, Any]] = judged) -> None:
        self.size, self.seconds, self.judge = size, seconds, judge
        self.folder = tempfile.TemporaryDirectory(prefix="synth-judges-")
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.done = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *fault: object) -> None:
        self.stop()
        self.folder.cleanup()

    def outcome(self, case: Any) -> Outcome | None:
        """What comes of a case; None where torch in one process refuses it."""
        if not self.processes or self.done >= MOST:
            self.stop()
            self._start()
        self.done += 1
        for pipe in self.pipes:
            with suppress(BrokenPipeError):
                pipe.send(case)
        answers, missing = self._answers()
        if any("void" in each for each in answers.values()) and not missing:
            return None
        made = self._merged(answers, missing)
        if missing or made.verdict == CRASH:
            self.stop()
        return made

    def _answers(self) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """By rank, what it answers, and why others do not."""
        end = time.monotonic() + self.seconds
        waiting, answers = dict(enumerate(self.pipes)), dict[int, dict[str, Any]]()
        missing: dict[int, str] = {}
        while waiting and (left := end - time.monotonic()) > 0:
            ready = wait(list(waiting.values()), left)
            for rank in [each for each, pipe in waiting.items() if pipe in ready]:
                try:
                    answers[rank] = waiting.pop(rank).recv()
                except EOFError:
                    self.processes[rank].join(5)
                    missing[rank] = f"rank {rank} ended with code {self.processes[rank].exitcode}"
                if rank in missing or answers[rank].get("verdict") == CRASH:
                    end = min(end, time.monotonic() + GRACE)
        if waiting:
            for rank in waiting:
                with suppress(ProcessLookupError):
                    os.kill(self.processes[rank].pid, signal.SIGUSR2)
            time.sleep(0.5)
            missing |= {rank: f"rank {rank} hangs{self._place(rank)}" for rank in waiting}
        return answers, missing

    def _place(self, rank: int) -> str:
        """Where a rank that was asked for it is, as its log says."""
        text = Path(self.folder.name, f"log-{rank}").read_text(encoding="utf-8", errors="replace")
        _, _, main_thread = text.rpartition(" (most recent call first)")  # which comes last
        frames = OWN.findall(main_thread) or FRAME.findall(main_thread)
        return " in {}:{} {}".format(*frames[0]) if frames else ""

    def _merged(self, answers: dict[int, dict[str, Any]], missing: dict[int, str]) -> Outcome:
        found = {rank: Outcome(**each) for rank, each in sorted(answers.items()) if "verdict" in each}
        seconds = max((each.seconds for each in found.values()), default=self.seconds)
        crashed = [each for each in found.values() if each.verdict == CRASH]
        if missing:
            said = "; ".join(missing.values())
            if crashed:
                return crashed[0]
            others = sorted({str(each) for each in found.values()})
            return Outcome(CRASH, "; ".join([said, *(f"others: {each}" for each in others)])[:600])
        kinds = {(each.verdict, each.why if each.verdict == REFUSED else "") for each in found.values()}
        if REFUSED in {kind for kind, _ in kinds} and len(kinds) > 1 and not crashed:
            said = " || ".join(f"rank {rank}: {each}" for rank, each in found.items())
            return Outcome(CRASH, f"ranks differ: {said}"[:900])
        made = worst(found.values()) if not crashed else crashed[0]
        return Outcome(**{**made.__dict__, "seconds": seconds})

    def stop(self) -> None:
        """End the ranks."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(0.2)
            if process.is_alive():
                process.kill()
            process.join()
        self.pipes, self.processes = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        pairs = [context.Pipe() for _ in range(self.size)]
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.done, self.pipes = 0, [mine for mine, _ in pairs]
        for rank in range(self.size):
            log = Path(self.folder.name, f"log-{rank}")
            process = context.Process(target=_serve, args=(rank, pairs, port, log, self.judge), daemon=True)
            process.start()
            self.processes.append(process)
        for _, other in pairs:
            other.close()


def _serve(
    rank: int,
    pairs: list[tuple[Connection, Connection]],
    port: int,
    log: Path,
    judge: Callable[[Any], dict[str, Any]],
) -> None:
    """Be one rank: judge cases until the pipe closes."""
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.register(signal.SIGUSR2, file=2)
    for number, (mine, other) in enumerate(pairs):
        mine.close()
        if number != rank:
            other.close()
    pipe = pairs[rank][1]
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(pairs)), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch
    import torch.distributed as dist

    gc.freeze()  # what was loaded before is not looked at in every collection
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    with suppress(EOFError, BrokenPipeError):
        while True:
            case = pipe.recv()
            answer = judge(case)
            if answer.get("verdict") != CRASH:
                numbers = [0] * len(pairs)  # nobody has sent what others do not wait for
                dist.all_gather_object(numbers, zlib.crc32(str(case).encode()))
                if len(set(numbers)) > 1:
                    answer = {"verdict": CRASH, "why": f"messages are left over: {numbers}"}
            sys.stderr.flush()
            pipe.send(answer)
    os._exit(0)
