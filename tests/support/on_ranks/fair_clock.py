"""Seconds of a test that do not depend on what else the machine does.

A test that says how long something takes means a machine whose processors are free. Of the time in which some
process waits for a processor, as Linux counts it (pressure stall information), nothing is known; it does not
count. A quarter of the time always does, so that a deadline stays one.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

LEAST = 0.25  # of the time counts in any case, so a deadline is stretched fourfold at most


def waited() -> float:
    """Seconds since the start of the machine in which some process waited for a processor; 0 if unknown."""
    with suppress(OSError):
        found = re.search(r"^some .*total=(\d+)", Path("/proc/pressure/cpu").read_text(), re.MULTILINE)
        return int(found[1]) / 1e6 if found else 0.0
    return 0.0


class FairClock:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self.begin, self.waited = time.monotonic(), waited()

    def seconds(self, taken: float | None = None) -> float:
        """What counts of the seconds that something has taken; by default of all since the beginning."""
        passed = time.monotonic() - self.begin
        free = 1 - (waited() - self.waited) / passed if passed > 0 else 1.0
        return (passed if taken is None else taken) * min(1.0, max(LEAST, free))
