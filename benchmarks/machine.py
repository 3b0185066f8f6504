"""A description of the machine for the head of every results file."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> str:
    """Processor, cores, memory, Python: one line, no names and no paths."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    return (
        f"{model}, {cores} cores, {pages / 2**30:.0f} GiB; {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )
