"""Memory of this machine that is free."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

MEMINFO = "/proc/meminfo"
# limit and use of the control group, in its second version and in its first
GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int | None:
    """Memory that new processes can have, swap not counted; None where the system does not say."""
    return min(_said(), default=None)


def _said() -> Iterable[int]:
    for line in _text(MEMINFO).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable" and value.split()[0].isdecimal():
            yield int(value.split()[0]) * 1024
    for limit, used in GROUPS:
        most, now = _text(limit).strip(), _text(used).strip()
        if most.isdecimal() and now.isdecimal():  # "max" is no limit
            yield max(0, int(most) - int(now))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
