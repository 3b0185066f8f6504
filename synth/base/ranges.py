"""Ranges on the command line: `64`, `1,8,61`, `1:65536`, `64KiB:64GiB`. LOW:HIGH is log-spaced."""

from __future__ import annotations

from collections.abc import Callable

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.base.units import parse_bytes, parse_whole

MOST_POINTS = 10_000
MOST_PROCS = 2**30


def parse_procs(text: str, points: int | None = None) -> list[int]:
    """Process counts from `64`, `1,8,61` or `1:65536`, ascending and distinct. Raises `UsageError`."""
    return _parse(text, points, _count, "procs")


def parse_memory(text: str, points: int | None = None) -> list[int]:
    """Bytes per process from `16GiB`, `1MiB,1GiB` or `64KiB:64GiB`, ascending. Raises `UsageError`."""
    return _parse(text, points, parse_bytes, "memory")


def _count(text: str) -> int:
    try:
        count = parse_whole(text)
    except UsageError:
        count = 0
    if not 1 <= count <= MOST_PROCS:
        raise UsageError(
            f"{text[:40]!r} is not a number of processes; write a whole number from 1 to {MOST_PROCS}"
        )
    return count


def _parse(text: str, points: int | None, number: Callable[[str], int], name: str) -> list[int]:
    ends = text.split(":")
    if len(ends) > 2:
        raise UsageError(f"{option(name)} {text!r} has more than one colon; write LOW:HIGH")
    if len(ends) == 1:
        return sorted({number(part) for part in text.split(",")})
    low, high = (number(end) for end in ends)
    if low > high:
        raise UsageError(
            f"{option(name)} {text!r} is empty: {ends[0]} is more than {ends[1]}; write LOW:HIGH"
        )
    return spaced(low, high, points)


def spaced(low: int, high: int, points: int | None = None) -> list[int]:
    """Ascending integers from `low` to `high` inclusive.

    Each is twice the one before, or, if `points` is given, about `points` of them are log-spaced.
    Raises `UsageError` if `points` is out of range.
    """
    if points is None:
        values = [low]
        while values[-1] * 2 <= high:
            values.append(values[-1] * 2)
        return values if values[-1] == high else [*values, high]
    if not 2 <= points <= MOST_POINTS:
        raise UsageError(f"{option('points')} is {points}; it must be from 2 to {MOST_POINTS}")
    ratio = (high / low) ** (1 / (points - 1))
    inner = {min(high, max(low, round(low * ratio**i))) for i in range(points)}
    return sorted(inner | {low, high})
