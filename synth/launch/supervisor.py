"""Starts ranks, and ends them when their starter is gone: a process of its own, without torch.

    python -I supervisor.py REPORT_FD [FOLDER]   with a job as a JSON line on stdin

The starter keeps stdin open, and may be killed at any moment. Then its end closes, and this process kills the
ranks and removes the folder of the run, which need not exist when this process starts. If this process is
killed, Linux kills the ranks. REPORT_FD receives one JSON object at the end: see `Ranks.report`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

LAST_WORDS = 5.0  # seconds for ranks to say why they end, after one has failed
TICK = 0.05  # seconds between two looks for ranks that have ended
SECONDS_BETWEEN = 0.5  # two looks for ranks that are stopped
PR_SET_PDEATHSIG = 1
LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
SELF = os.getpid()
HEEDED = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}


class Ranks:
    """The processes of one run."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.codes: list[int | None] = [None] * len(job["commands"])
        self.ended: list[int] = []  # ranks in the order of their ends
        self.stopped: list[int] = []  # ranks that were stopped when the others had ended
        self.missing: dict[int, str] = {}  # rank -> why it could not be started
        self.since: dict[int, float] = {}  # stopped rank -> when that was seen first
        self.processes: list[subprocess.Popen[bytes] | None] = []
        for rank, (command, environment) in enumerate(job["commands"]):
            self.processes.append(self._start(rank, command, {**job["environment"], **environment}))

    def _start(
        self, rank: int, command: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes] | None:
        try:
            return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=as_rank)
        except OSError as fault:
            self.missing[rank] = f"{command[0]}: {fault.strerror}"
            return None

    def look(self) -> None:
        """Notice which ranks have ended."""
        for rank, process in enumerate(self.processes):
            if process and self.codes[rank] is None and process.poll() is not None:
                self.codes[rank] = process.returncode
                self.ended.append(rank)

    @property
    def failed(self) -> bool:
        """Whether a rank has ended with a fault, or could not be started."""
        return bool(self.missing) or any(self.codes[rank] != 0 for rank in self.ended)

    @property
    def over(self) -> bool:
        """Whether all ranks have ended."""
        return len(self.ended) + len(self.missing) == len(self.codes)

    def halted_for(self, now: float) -> float:
        """The longest time in seconds that a rank has been stopped (SIGSTOP)."""
        for rank, process in enumerate(self.processes):
            if process and self.codes[rank] is None and state_of(process.pid) in ("T", "t"):
                self.since.setdefault(rank, now)
            else:
                self.since.pop(rank, None)
        return max((now - since for since in self.since.values()), default=0.0)

    @property
    def halted(self) -> bool:
        """Whether all ranks that are left are stopped: they say no more."""
        left = [p.pid for p, code in zip(self.processes, self.codes, strict=True) if p and code is None]
        return bool(left) and all(state_of(pid) in ("T", "t") for pid in left)

    def end(self) -> None:
        """Kill what is left, and wait for it."""
        for rank, process in enumerate(self.processes):
            if process and self.codes[rank] is None:
                if state_of(process.pid) in ("T", "t"):
                    self.stopped.append(rank)
                process.kill()
        for process in self.processes:
            if process:
                process.wait()

    def report(self) -> dict[str, Any]:
        """What happened: exit codes (null: killed here), and the order of the ends."""
        return {
            "codes": self.codes,
            "ended": self.ended,
            "stopped": self.stopped,
            "missing": self.missing,
        }


def as_rank() -> None:
    """Called in a new process: it heeds signals, and on Linux the kernel kills it when its parent ends."""
    for number, handler in HEEDED.items():
        signal.signal(number, handler)
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != SELF:
            os._exit(1)


def state_of(pid: int) -> str:
    """The state of a process as /proc has it, such as T for stopped; "" where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def supervised(job: dict[str, Any]) -> tuple[Ranks, bool]:
    """Run a job to its end; the ranks, and whether the starter is gone."""
    ranks, since, gone, looked = Ranks(job), 0.0, False, 0.0
    while not ranks.over and not gone:
        readable, _, _ = select.select([0], [], [], TICK)
        gone = bool(readable) and not os.read(0, 1)
        ranks.look()
        now = time.monotonic()
        if now - looked > SECONDS_BETWEEN:
            looked, halted = now, ranks.halted_for(now)
            if job["patience"] is not None and halted > job["patience"] + LAST_WORDS / 2:
                break  # the other ranks have the same timeout, and know more of it
        if ranks.failed:
            since = since or time.monotonic()
            if time.monotonic() - since > LAST_WORDS or ranks.halted:
                break
    ranks.end()
    return ranks, gone


def reserved_port() -> socket.socket:
    """A socket with a free port of this machine. It does not listen, so that rank 0 can, but nobody else."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def read_job() -> dict[str, Any] | None:
    """The job: the first line of stdin, which stays open; None if the starter is gone already."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            return None
        line += part
    job: dict[str, Any] = json.loads(line)
    return job


def main() -> int:
    """What this process does."""
    for number in HEEDED:
        signal.signal(number, signal.SIG_IGN)  # the starter decides: closing stdin ends this
    folder = sys.argv[2] if len(sys.argv) > 2 else None
    job = read_job()
    if job is None:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        return 1
    with reserved_port() as held:
        job["environment"].setdefault("MASTER_PORT", str(held.getsockname()[1]))
        ranks, gone = supervised(job)
    if gone and folder:
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(BrokenPipeError):
        os.write(int(sys.argv[1]), json.dumps(ranks.report()).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
