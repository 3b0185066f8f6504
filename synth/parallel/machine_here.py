"""The machine at hand: measured when a network is first planned for time on it, and kept in a file.

The file is in the user's cache folder: `$XDG_CACHE_HOME/synth`, or `~/.cache/synth`. Its name has what the
numbers depend on: host, version of torch, backend, device, dtype, ranks (and how many on a node), threads.
Delete it to measure anew.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth.base.atomic_write import write_bytes
from synth.base.errors import UsageError

if TYPE_CHECKING:
    import torch

    from synth.runtime.grid.ranks import Ranks

NEEDED = {"ranks", "local", "collectives", "kernels", "call", "bandwidth", "gamma", "overlap"}


def measured_here(ranks: Ranks, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What was measured on the machine of some ranks: the first rank's numbers, the same on all.

    All ranks, and those of all replicas, must call this. The first call takes some seconds.
    """
    everyone = ranks.everyone
    path = _path(ranks, device, dtype)
    known = (measured_before().get(path) or _read(path)) if everyone.me == 0 else None
    found: dict[str, Any] | None = everyone.from_first(known)
    if found is not None:
        return found
    from synth.runtime.program.first_use import measure

    if ranks.reports:
        print(f"synth: measuring this machine on {ranks.size} ranks, kept in {path}", file=sys.stderr)
    measured: dict[str, Any] = everyone.from_first(measure(ranks, device, dtype))
    if everyone.me == 0:
        measured_before()[path] = measured
        _write(path, measured)
    return measured


@cache
def measured_before() -> dict[Path, dict[str, Any]]:
    """What this process measured, by file: networks of one process are planned alike, kept file or not."""
    return {}


def _path(ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Path:
    """The file of the numbers on this rank's machine."""
    import torch
    import torch.distributed as dist

    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parts = [
        *(platform.node() or "host", f"torch-{torch.__version__}", dist.get_backend(ranks.group), kind),
        *(str(dtype).removeprefix("torch."), f"{ranks.size}-ranks", f"{_ranks_beside()}-here"),
        f"{torch.get_num_threads()}-threads",
    ]
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder, "synth", re.sub(r"[^\w.+-]", "_", "_".join(parts)) + ".json")


def _ranks_beside() -> str:
    """The ranks that a launcher started on this node; "all" where it does not say."""
    return os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or "all"


def _read(path: Path) -> dict[str, Any] | None:
    """The numbers of a file; None where there is none, or none that can be used."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, dict) and found.keys() >= NEEDED:
            return found
    return None


def _write(path: Path, found: dict[str, Any]) -> None:
    """Keep the numbers, where the folder can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(str(path), json.dumps(found).encode())
    except (OSError, UsageError) as fault:
        print(f"synth: the measured numbers are not kept: {fault}", file=sys.stderr)
