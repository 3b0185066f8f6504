"""Processes of this machine: which rank each one is, and whether it can go on."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from synth.runtime.grid.launched_job import job_name


def process_facts(pid: int) -> list[str]:
    """/proc/PID/stat after the name: state, parent, and so on; [] if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def birth(pid: int) -> str:
    """When a process of this machine started: tells apart processes with one id."""
    facts = process_facts(pid)
    return facts[19] if facts else ""


def is_running(host: str, pid: int, began: str) -> bool:
    """Whether a process surely runs: it is on this machine, and not stopped or dead."""
    facts = process_facts(pid) if host == socket.gethostname() and began else []
    return bool(facts) and facts[19] == began and facts[0] not in "TtZXx"


def is_halted(host: str, pid: int, began: str) -> bool:
    """Whether a process of this machine surely does not run: it is stopped or dead."""
    own = host == socket.gethostname() and bool(began)
    return own and not is_running(host, pid, began)


def end_lost(host: str, pid: int, began: str) -> None:
    """Kill a lost rank after a failure, if it is on this machine."""
    if host == socket.gethostname() and began and began == birth(pid):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def is_orphan() -> bool:
    """Whether torchrun, which started this process, has ended: init is the parent."""
    if os.getppid() != 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    with suppress(OSError), open("/proc/1/cmdline", "rb") as file:
        return b"torch" not in file.read()  # in a container, init may be torchrun
    return False


def siblings() -> dict[int, int]:
    """Rank -> process, of those that the same launcher started for the same job."""
    parent, found = os.getppid(), dict[int, int]()
    own = os.environ.get("MASTER_PORT"), job_name()
    with suppress(OSError):
        with open(f"/proc/{parent}/task/{parent}/children", encoding="utf-8") as file:
            pids = [int(word) for word in file.read().split()]
        for pid in pids:
            given = _environment(pid)
            rank, job = (
                given.get("RANK", ""),
                (given.get("MASTER_PORT"), job_name(given)),
            )
            if job == own and rank.isdecimal():
                found[int(rank)] = pid
    return found


def _environment(pid: int) -> dict[str, str]:
    """The environment with which a process started; {} if it has gone."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")
        return {
            name: value for name, _, value in (word.partition("=") for word in words)
        }
    return {}


def siblings_by_fate() -> tuple[set[int], set[int]]:
    """The ranks that torchrun started on this machine: that have ended, are stopped."""
    names = "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    if not set(names) <= os.environ.keys():
        return set(), set()
    rank, local, count = (int(os.environ[name]) for name in names)
    found = siblings()
    if found.get(rank) != os.getpid():  # no /proc, or started in another way
        return set(), set()
    ranks = set(range(rank - local, rank - local + count))
    stopped = {each for each, pid in found.items() if is_stopped(pid)}
    return ranks - found.keys(), stopped


def end_sibling(rank: int) -> None:
    """Kill a rank that the same launcher started on this machine."""
    pid = siblings().get(rank)
    if pid is not None:
        end_lost(socket.gethostname(), pid, birth(pid))


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped (SIGSTOP)."""
    return process_facts(pid)[:1] in (["T"], ["t"])
