"""Ranks on this machine: started, watched, and all gone at the end, whatever happens to whom.

A small process, the supervisor, starts the ranks and ends them when this process is gone. Nothing is imported
from the current folder: `PYTHONSAFEPATH` keeps it off `sys.path`.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synth.base.errors import RunError
from synth.launch import supervisor

MOST_OUTPUT = 2**20  # bytes of output that are kept, the last ones
GRACE = supervisor.LAST_WORDS + 3.0  # seconds in which a supervisor ends that is told to
HOME = str(Path(__file__).resolve().parents[2])  # where `synth` is imported from

_MEETING = "last started the meeting of the ranks"  # what ranks say that have not met
_OF_RANK = re.compile(r"rank [0-9]+( \(|:)")
_BLAMES = re.compile(r" is (lost|late), |; the first to fail ")


@dataclass(frozen=True)
class Ended:
    """How a run ended. codes: by rank, None for a rank that had to be killed."""

    codes: list[int | None]
    output: str  # of all ranks, the last mebibyte
    ended: list[int] = field(default_factory=list)  # ranks in the order of their ends
    stopped: list[int] = field(default_factory=list)  # ranks that were stopped (SIGSTOP)
    missing: dict[int, str] = field(default_factory=dict)  # rank -> why it did not start

    @property
    def code(self) -> int:
        """0, or the code of the rank that failed first; -9 if no rank ended by itself."""
        if all(code == 0 for code in self.codes):
            return 0
        failed = [self.codes[rank] for rank in self.ended if self.codes[rank] != 0]
        return next((code for code in failed if code is not None), -signal.SIGKILL)

    def first_fault(self) -> str:
        """What the launcher itself saw go wrong first, or ""."""
        for rank, why in self.missing.items():
            return f"rank {rank} could not be started: {why}"
        for rank in self.ended:
            code = self.codes[rank]
            if code is not None and code < 0:
                return f"rank {rank} was ended by {_signal(-code)}"
            if code not in (0, 6):  # with code 6 it has said why
                return f"rank {rank} ended with code {code}"
        if self.stopped:
            return f"rank {self.stopped[0]} was stopped"
        early = None in self.codes or (6 in self.codes and _MEETING in self.output)
        if early and self.ended and self.codes[self.ended[0]] == 0:
            return f"rank {self.ended[0]} ended with code 0 before the others"
        return ""

    def last_words(self) -> str:
        """What the ranks said last, and what the launcher saw."""
        seen, said = self.first_fault(), last_lines(self.output)
        if not seen or re.search(rf"{' '.join(seen.split()[:2])}\b", said):
            return said
        return f"{seen} | {said}" if said != NOTHING else seen


def started(
    program: Sequence[str],
    procs: int,
    flags: Sequence[str],
    limit: float,
    defaults: Mapping[str, str] | None = None,
    folder: RunFolder | None = None,
    patience: float | None = None,
) -> Ended:
    """Run a program on ranks of this machine for `limit` seconds at most.

    program: what Python runs: a file, or `-m` and a module.
    defaults: what the environment holds unless it does already.
    folder: of the run, see `run_folder`.
    patience: seconds that a rank may be stopped (SIGSTOP) until the others say so; None: for ever.
    Raises `RunError` where it takes longer.
    """
    command = [sys.executable, *program, *flags]
    commands = [
        (command, {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(procs)})
        for rank in range(procs)
    ]
    own = {"LOCAL_WORLD_SIZE": str(procs), "MASTER_ADDR": "127.0.0.1"}
    return run_commands(commands, environment(defaults) | own, limit, folder, patience)


def environment(defaults: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of ranks: synth can be imported, what lies in the current folder cannot.

    The secret of a run seals what ranks write into their store; see `synth.runtime.grid.seals`.
    """
    paths = [HOME, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    launchers = ("TORCHELASTIC_", "SLURM_", "MASTER_", "LOCAL_", "RANK", "WORLD_SIZE", "GROUP_", "ROLE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    return {
        "OMP_NUM_THREADS": "1",
        **(defaults or {}),
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
        "SYNTH_RUN_ID": uuid.uuid4().hex,
        "SYNTH_RUN_SECRET": secrets.token_hex(32),
    }


def run_commands(
    commands: Sequence[tuple[list[str], dict[str, str]]],
    shared: dict[str, str],
    limit: float,
    folder: RunFolder | None = None,
    patience: float | None = None,
) -> Ended:
    """Run one command per rank, each with variables of its own besides the shared ones.

    MASTER_PORT is chosen if `shared` lacks it. Raises `RunError` after `limit` seconds, with the output.
    """
    job = {
        "commands": commands,
        "environment": shared,
        "patience": patience,
    }
    with nullcontext(folder.supervisor) if folder else _supervisor() as given:
        output, report = given.take(job)
        said, over = _read(output, report, time.monotonic() + limit)
        if not over:
            words = last_lines(said)
            raise RunError(
                f"the run did not end within {limit:.0f} s and was stopped; raise --timeout, or see: {words}"
            )
    found = over[0]
    if not found:
        raise RunError(f"the process that supervises the ranks was ended; they said: {last_lines(said)}")
    data = json.loads(found)
    missing = {int(rank): why for rank, why in data["missing"].items()}
    return Ended(data["codes"], said, data["ended"], data["stopped"], missing)


@dataclass(frozen=True)
class Supervisor:
    """The process that starts ranks, once it has a job. report: where it reads how they ended."""

    process: subprocess.Popen[bytes]
    report: int

    def take(self, job: dict[str, Any]) -> tuple[int, int]:
        """Give it its job; the handles of the ranks' output and of its report."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):  # it was killed at once
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
        return self.process.stdout.fileno(), self.report


@dataclass(frozen=True)
class RunFolder:
    """A folder of one run, and the supervisor that removes it if this process is killed."""

    path: Path
    supervisor: Supervisor


@contextmanager
def run_folder(prefix: str) -> Iterator[RunFolder]:
    """A temporary folder for one run. It is gone afterwards, at whichever moment this process is killed.

    The supervisor knows its name before it exists.
    """
    path = Path(tempfile.gettempdir(), f"{prefix}{uuid.uuid4().hex}")
    with _supervisor(path) as process:
        path.mkdir(mode=0o700)
        try:
            yield RunFolder(path, process)
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _supervisor(folder: Path | None = None) -> Iterator[Supervisor]:
    """A supervisor, and later its ranks. All is gone at the end."""
    report, theirs = os.pipe()
    command = [sys.executable, "-I", supervisor.__file__, str(theirs)]
    command += [str(folder)] if folder else []
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    assert process.stdin
    assert process.stdout
    try:
        yield Supervisor(process, report)
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()  # tells the supervisor to end
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads the session of the ranks
        process.wait()
        process.stdout.close()
        os.close(report)


def _read(output: int, report: int, end: float) -> tuple[str, list[bytes]]:
    """The last output of the ranks until the supervisor reports, and its report; [] if the time is over."""
    said, found, watched = b"", b"", [output, report]
    while report in watched:
        left = None if end == math.inf else max(0.0, end - time.monotonic())
        ready, _, _ = select.select(watched, [], [], left)
        if not ready:
            return said.decode(errors="replace"), []
        for handle in ready:
            data = os.read(handle, 65536)
            if not data:
                watched.remove(handle)
            elif handle == output:
                said = (said + data)[-MOST_OUTPUT:]
            else:
                found += data
    while select.select([output], [], [], 0)[0] and (data := os.read(output, 65536)):
        said = (said + data)[-MOST_OUTPUT:]
    return said.decode(errors="replace"), [found]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


NOTHING = "nothing was printed"


def last_lines(told: str) -> str:
    """What a failed run said last: first the ranks that blame another one."""
    noise = (
        "torch/distributed",
        "=====",
        "-----",
        "elastic",
        "[Gloo]",
        "W1",
        "E1",
        "Root Cause",
        "c10d]",
        "frame #",
    )
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    ranks = [line for line in lines if _OF_RANK.match(line)]
    if ranks:  # who blames another rank knows most
        return " | ".join(sorted(ranks, key=lambda line: not _BLAMES.search(line))[:2])
    kept = [line for line in lines if not any(mark in line for mark in noise)]
    return " | ".join(kept[-3:]) or NOTHING
