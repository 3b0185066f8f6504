"""What the launcher says of this job, and the last words of a rank that fails."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_WORDS = 2000  # characters of the last words of a rank
NO_ADDRESS = (
    "MASTER_ADDR and MASTER_PORT are not set; start with torchrun, or export both"
    " before srun: docs/longjobs.md has the lines"
)


def launched() -> tuple[int, int, int]:
    """(rank, world size, local rank) from torchrun or srun; (0, 1, 0) without them."""
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if names[0] in os.environ and names[1] in os.environ:
            rank, size = int(os.environ[names[0]]), int(os.environ[names[1]])
            return rank, size, int(os.environ.get(names[2], "0"))
    return 0, 1, 0


def ranks_here(local: int) -> int:
    """Ranks on this machine as torchrun or srun says, else `local` + 1."""
    said = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_TASKS_PER_NODE")
    digits = (said or "").partition("(")[0].partition(",")[0]
    return int(digits) if digits.isdecimal() else local + 1


def usable_cores() -> int:
    """The processor cores that this process may use."""
    able = getattr(os, "sched_getaffinity", None)
    return (len(able(0)) if able else os.cpu_count()) or 1


def job_name(environment: Mapping[str, str] = os.environ) -> str:
    """What tells a job from others that use the same port, as the launcher says."""
    names = (
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "SYNTH_RUN_ID"),
    )
    return "/".join(environment.get(name, "") for name in names)


def has_address() -> bool:
    """Whether the launcher says where the ranks meet."""
    return {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def agent_store() -> bool:
    """Whether torchrun keeps the store; else rank 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_place() -> str:
    """Address and port of the store."""
    given = os.environ.get("MASTER_ADDR", "?"), os.environ.get("MASTER_PORT", "?")
    return ":".join(given)


def on_one_host(size: int) -> bool:
    """Whether the launcher says that all ranks run on this machine."""
    if os.environ.get("MASTER_ADDR") in LOOPBACK:
        return True
    if "LOCAL_WORLD_SIZE" in os.environ:
        return os.environ["LOCAL_WORLD_SIZE"] == str(size)
    return os.environ.get("SLURM_STEP_NUM_NODES") == "1"


def store_address(size: int) -> tuple[str, int]:
    """Where ranks reach the store: by loopback, if one of them keeps it beside all."""
    name, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if on_one_host(size) and not agent_store() and name not in LOOPBACK:
        name = "127.0.0.1"
    return name, port


def store_keeper() -> str:
    """Who keeps the store, for messages."""
    keeper = "the launcher" if agent_store() else "rank 0"
    return f"{keeper}, who keeps the store at {store_place()},"


def ends_within(seconds: float, job: Callable[[], None]) -> bool:
    """Run a job in a thread, and wait for it for some seconds; whether it has ended."""
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def reason_of(error: BaseException) -> str:
    """An error as one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    text = text.partition(". This is typically")[
        0
    ]  # gloo's guess, after its source line
    text = text.partition("] ")[2] if text.startswith("[/") else text
    if text and isinstance(error, RuntimeError | ValueError | OSError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def plain(words: str) -> str:
    """Words that another process may have written, as one line of bounded length."""
    cut = words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]} ..."
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in cut
    )


def say(line: str, to: Any = None) -> None:
    """Print one line at once, in one piece even if many ranks print."""
    stream = to or sys.stdout
    stream.write(line + "\n")
    stream.flush()


def say_last(line: str) -> None:
    """Print one line to the standard error of the process, in one piece.

    `sys.stderr` is no place for the last words of a rank: while torch prints an
    exception of the main thread, it collects in memory what is written there.
    """
    os.write(2, f"{line}\n".encode())


def say_at_once(line: str) -> None:
    """Print one line to standard error from this thread; not if that would block."""
    wish = select.poll()
    wish.register(2, select.POLLOUT)
    if wish.poll(0):
        os.write(2, f"{line}\n".encode()[: select.PIPE_BUF])
