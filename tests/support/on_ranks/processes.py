"""Processes that a test starts: found by the environment that they inherit, and ended with the test.

Ranks have process groups and sessions of their own, so a process group alone does not lead to all of them.
All descendants of a process inherit its environment: what carries the mark of a test there was started by it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SESSION = "SYNTH_TEST_SESSION"  # the mark of everything that a run of pytest starts
OWN = "SYNTH_TEST_PROCESSES"  # the mark of what one test starts
PATIENCE = 10.0  # seconds until processes that were killed are gone


def new_mark() -> str:
    """A value that no other test and no other run of pytest has."""
    return uuid.uuid4().hex


class Processes:
    """Starts processes for one test; `end` kills them and all their descendants."""

    def __init__(self) -> None:
        self.mark = new_mark()
        self.started: list[subprocess.Popen[Any]] = []

    def start(
        self, command: Sequence[str], env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """`subprocess.Popen` in a process group of its own, in which Ctrl-C (SIGINT) has its usual effect.

        A shell starts background jobs, and `nohup` all jobs, with SIGINT ignored; children inherit that, and
        Python then installs no handler.
        """
        process = subprocess.Popen(
            command,
            env={**(os.environ if env is None else env), OWN: self.mark},
            process_group=0,
            preexec_fn=_heed_interrupts,
            **options,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill whatever is left, and close the pipes."""
        end_marked(OWN, self.mark)
        for process in self.started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_marked(name: str, value: str) -> None:
    """Kill all processes whose environment has `name=value`, until none is left.

    Spared are this process and multiprocessing's tracker of shared memory, which ends with this process.
    """
    begin = time.monotonic()
    spared = {os.getpid(), *command_lines("multiprocessing.resource_tracker")}
    while (left := set(marked(name, value)) - spared) and time.monotonic() - begin < PATIENCE:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked(name: str, value: str) -> list[int]:
    """The processes that started with `name=value` in their environment and have not ended."""
    mark = f"{name}={value}".encode()
    return [pid for pid, environ in _proc("environ") if mark in environ.split(b"\0")]


def command_lines(word: str) -> dict[int, str]:
    """Process -> command line, of the other processes that have a word in it."""
    found = {pid: line.replace(b"\0", b" ").decode(errors="replace") for pid, line in _proc("cmdline")}
    return {pid: line for pid, line in found.items() if word in line and pid != os.getpid()}


def _proc(file: str) -> Iterator[tuple[int, bytes]]:
    """A file of every process in /proc that may be read; of processes that have ended it is empty."""
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes()
