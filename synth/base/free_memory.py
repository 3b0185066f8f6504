"""Memory of this machine that is free."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

MEMINFO = "/proc/meminfo"
OWN_GROUP = "/proc/self/cgroup"
# where control groups are mounted, in their second version and in their first: folder, limit and use
GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available_bytes() -> int | None:
    """Memory that new processes can have, swap not counted; None where the system does not say."""
    return min(_said(), default=None)


def _said() -> Iterable[int]:
    for line in _text(MEMINFO).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable" and value.split()[0].isdecimal():
            yield int(value.split()[0]) * 1024
    for (top, limit, used), own in zip(GROUPS, _own_groups(), strict=True):
        for folder in (own, *own.parents):  # each group is within the limits of those above it
            most, now = (_text(str(Path(top) / folder / name)).strip() for name in (limit, used))
            if most.isdecimal() and now.isdecimal():  # "max" is no limit
                yield max(0, int(most) - int(now))


def _own_groups() -> tuple[Path, Path]:
    """The control group of this process for memory, below where groups are mounted, in each version."""
    second = first = Path()
    for line in _text(OWN_GROUP).splitlines():
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0" and not kinds:
            second = Path(path.lstrip("/"))
        elif "memory" in kinds.split(","):
            first = Path(path.lstrip("/"))
    return second, first


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
