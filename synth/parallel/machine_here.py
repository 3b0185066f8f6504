"""The machine at hand: measured when a network is first planned for time on it, and kept in a file.

The file is in the user's cache folder: `$XDG_CACHE_HOME/synth`, or `~/.cache/synth`. It says what the numbers
depend on: host, processors, version of torch, backend, device, dtype, ranks (and how many on a node), and
threads. Another machine is measured anew, as is a file that is old or damaged. What was measured while other
processes computed is kept for an hour only.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth.base.atomic_write import write_bytes
from synth.base.errors import InputError, UsageError
from synth.base.user_files import MOST_JSON, digest_of, read_text
from synth.parallel.step_costs import step_costs
from synth.runtime.grid.log import LOG

if TYPE_CHECKING:
    import torch

    from synth.runtime.grid.ranks import Ranks

NEEDED = {"ranks", "local", "collectives", "kernels", "call", "bandwidth", "gamma", "fresh", "overlap"}
NEEDED |= {"tap", "errors", "others", "crowd", "pieces", "dispatch", "shared", "exchange"}
SCHEMA = "synth.measured/5"
QUIET = 0.1  # share of the processors that others may use while a machine is measured
DAY = 86400
KEPT, KEPT_BUSY = 30 * DAY, 3600  # seconds that numbers hold, of a quiet and of a busy machine


def measured_here(ranks: Ranks, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What was measured on the machine of some ranks: the first rank's numbers, the same on all.

    All ranks, and those of all replicas, must call this. The first call takes some seconds.
    """
    everyone, why = ranks.everyone, ""
    facts = _facts(ranks, device, dtype)
    path = _path(facts)
    known = None
    if everyone.me == 0:
        known = measured_before().get(path)
        if known is None:
            known, why = kept(path, facts)
    found: dict[str, Any] | None = everyone.from_first(known)
    if found is not None:
        return found
    from synth.runtime.model.undisturbed import single_precision
    from synth.runtime.program.first_use import measure

    if everyone.me == 0:
        anew = f" anew, as the kept numbers {why}" if why else ""
        LOG.info("synth: measuring this machine on %d ranks%s, kept in %s", ranks.size, anew, path)
    with single_precision():
        own = measure(ranks, device, dtype)
        own |= step_costs(ranks, device, own["crowd"])
    measured: dict[str, Any] = everyone.from_first(own)
    if everyone.me == 0:
        measured_before()[path] = measured
        _write(path, facts, measured)
    return measured


@cache
def measured_before() -> dict[Path, dict[str, Any]]:
    """What this process measured, by file: networks of one process are planned alike, kept file or not."""
    return {}


def _facts(ranks: Ranks, device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What the numbers depend on, as this rank has it."""
    import torch
    import torch.distributed as dist

    able = getattr(os, "sched_getaffinity", None)
    cores = len(able(0)) if able else os.cpu_count()
    return {
        "host": platform.node() or "host",
        "torch": f"torch-{torch.__version__}",
        "backend": dist.get_backend(ranks.group),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "ranks": f"{ranks.size}-ranks",
        "ranks of the host": f"{_ranks_beside()}-here",
        "threads": f"{torch.get_num_threads()}-threads",
        "processors": f"{cores} of {_processor()}",
    }


def _path(facts: dict[str, str]) -> Path:
    """The file of the numbers on this rank's machine."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    parts = [each for name, each in facts.items() if name != "processors"]
    return Path(folder, "synth", re.sub(r"[^\w.+-]", "_", "_".join(parts)) + ".json")


def _processor() -> str:
    """The model of the processors."""
    with suppress(OSError, UnicodeDecodeError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _ranks_beside() -> str:
    """The ranks that a launcher started on this node; "all" where it does not say."""
    return os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or "all"


def kept(path: Path, facts: dict[str, str]) -> tuple[dict[str, Any] | None, str]:
    """(the numbers of a file, or None; why a file that is there is not used, else "").

    facts: what the numbers must have been measured with.
    """
    try:
        text = read_text(path, MOST_JSON, "file of numbers")
    except InputError as fault:
        missing = isinstance(fault.__cause__, FileNotFoundError)
        return None, "" if missing else f"cannot be read ({fault})"
    try:
        data = json.loads(text)
        found = data["found"]
        whole = data["schema"] == SCHEMA and data["digest"] == digest_of(data) and found.keys() >= NEEDED
        age = time.time() - data["time"]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        return None, "are damaged or of another version"
    other = next((name for name in facts if data["facts"].get(name) != facts[name]), None)
    if other is not None:
        return None, f"are of another machine (its {other}: {data['facts'].get(other)}, here {facts[other]})"
    busy = found["others"] > QUIET
    if age < -DAY:
        return None, "have a later date than today"
    if age > (KEPT_BUSY if busy else KEPT):
        meanwhile = f", measured while others used {found['others']:.0%} of the processors" if busy else ""
        return None, f"are {_shown(age)} old{meanwhile}"
    return found, ""


def _shown(age: float) -> str:
    return f"{age / DAY:.0f} days" if age > 2 * DAY else f"{age / 3600:.0f} hours"


def _write(path: Path, facts: dict[str, str], found: dict[str, Any]) -> None:
    """Keep the numbers, where the folder can be written."""
    data = {"schema": SCHEMA, "time": time.time(), "facts": facts, "found": found}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(str(path), json.dumps({**data, "digest": digest_of(data)}).encode())
    except (OSError, UsageError) as fault:
        LOG.warning("synth: the measured numbers are not kept: %s", fault)
