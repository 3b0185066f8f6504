"""Half-open intervals, and boxes of intervals. Ownership and communication are expressed as boxes.

They are those of the ranks (`synth.runtime.grid.boxes`), in plain Python.
"""

from __future__ import annotations

from synth.runtime.grid.boxes import (
    Box,
    Interval,
    consecutive,
    cut,
    joined,
    outside,
    overlap,
    shape,
    volume,
    widen,
    within,
)
from synth.runtime.grid.boxes import intersect as meet

__all__ = [
    "Block", "Box", "Interval", "consecutive", "contains", "cut", "cuts", "hull", "joined", "length", "meet",
    "outside", "overlap", "shape", "volume", "widen", "within",
]  # fmt: skip
Block = dict[str, Interval]  # axis -> the interval of the loop that a process or a step works on


def cuts(whole: Interval, parts: int) -> list[Interval]:
    """All parts of `cut`, in ascending order."""
    return [cut(whole, parts, index) for index in range(parts)]


def length(interval: Interval) -> int:
    """Number of positions in an interval."""
    return interval[1] - interval[0]


def hull(one: Interval, other: Interval) -> Interval:
    """The smallest interval that contains both; the other one if one of them is empty."""
    if one[0] == one[1] or other[0] == other[1]:
        return other if one[0] == one[1] else one
    return min(one[0], other[0]), max(one[1], other[1])


def contains(outer: Box, inner: Box) -> bool:
    """Whether every word of `inner` is in `outer`. Every box contains the empty box."""
    return volume(inner) == 0 or all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, inner, strict=True))
