"""Programs under torchrun on this machine: started, watched, and with all their ranks gone at the end."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from synth.base.errors import RunError

LAST_WORDS = 4.0  # for ranks to say why they end when torchrun is gone

_OF_RANK = re.compile(r"rank [0-9]+ \(")
_BLAMES = re.compile(r" is (lost|late), |; the first to fail ")


def started(
    program: Path, procs: int, flags: list[str], limit: float, defaults: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a program under torchrun for `limit` seconds at most; its exit code and what it said.

    defaults: what the environment holds unless it does already.
    Raises `RunError` where it takes longer.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
    command += [f"--nproc-per-node={procs}", str(program), *flags]
    home = str(Path(__file__).resolve().parents[2])  # where `synth` is imported from
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "OMP_NUM_THREADS": "1",
        **(defaults or {}),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": str(program.parent),  # torchrun leaves its folder of logs when it is killed
    }
    with tempfile.TemporaryFile() as output, _ended(command, environment, output) as process:
        try:
            code = process.wait(timeout=None if limit == math.inf else limit)
        except subprocess.TimeoutExpired as fault:
            output.seek(0)
            said = last_lines(output.read().decode(errors="replace"))
            raise RunError(
                f"the run did not end within {limit:.0f} s and was stopped; raise --timeout, or see: {said}"
            ) from fault
        _end_strays(str(program), LAST_WORDS)
        output.seek(0)
        return code, output.read().decode(errors="replace")


@contextmanager
def _ended(command: list[str], environment: dict[str, str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own; when this is left, all of the session is gone."""
    process = subprocess.Popen(
        command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        for kind, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            if not _alive(process.pid):
                break
            os.killpg(process.pid, kind)
            begin = time.monotonic()
            while _alive(process.pid) and time.monotonic() - begin < patience:
                process.poll()
                time.sleep(0.02)
        process.wait()
        _end_strays(next(word for word in command if word.endswith(".py")))


def _end_strays(program: str, patience: float = 0.0) -> None:
    """Ranks have sessions of their own: wait for those that outlive torchrun, then end them.

    They are found in /proc; where there is none they notice by themselves.
    """
    begin = time.monotonic()
    while (left := _ranks_of(program)) and time.monotonic() - begin < patience:
        time.sleep(0.1)
    for rank in left:
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)


def _ranks_of(program: str) -> list[int]:
    """The processes that run a program; its path is that of one run alone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if os.fsencode(program) in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _alive(session: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(session, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def last_lines(told: str) -> str:
    """What a failed run said last, without torchrun's own banners."""
    noise = ("torch/distributed", "=====", "-----", "elastic", "[Gloo]", "W1", "E1", "Root Cause")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    ranks = [line for line in lines if _OF_RANK.match(line)]
    if ranks:  # who blames another rank knows most
        return " | ".join(sorted(ranks, key=lambda line: not _BLAMES.search(line))[:2])
    kept = [line for line in lines if not any(mark in line for mark in noise)] or lines
    return " | ".join(kept[-3:]) or "nothing was printed"
