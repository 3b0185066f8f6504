"""Half-open intervals, and boxes of intervals. Ownership and communication are expressed as boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator

Interval = tuple[int, int]  # [low, high); empty when low == high
Box = tuple[Interval, ...]  # one interval per dimension of a tensor
Block = dict[str, Interval]  # axis -> the interval of the loop that a process or a step works on


def cut(whole: Interval, parts: int, index: int) -> Interval:
    """Part `index` of `parts`, as `torch.tensor_split` splits. The first `length % parts` are one longer."""
    low, high = whole
    size, longer = divmod(high - low, parts)
    start = low + index * size + min(index, longer)
    return start, start + size + (1 if index < longer else 0)


def cuts(whole: Interval, parts: int) -> list[Interval]:
    """All parts of `cut`, in ascending order."""
    return [cut(whole, parts, index) for index in range(parts)]


def length(interval: Interval) -> int:
    """Number of positions in an interval."""
    return interval[1] - interval[0]


def meet(one: Interval, other: Interval) -> Interval:
    """Intersection of two intervals. It is `(low, low)` if they are disjoint."""
    low = max(one[0], other[0])
    return low, max(low, min(one[1], other[1]))


def shape(box: Box) -> tuple[int, ...]:
    """Extent per dimension."""
    return tuple(high - low for low, high in box)


def volume(box: Box) -> int:
    """Number of words in a box."""
    return math.prod(high - low for low, high in box)


def hull(one: Interval, other: Interval) -> Interval:
    """The smallest interval that contains both; the other one if one of them is empty."""
    if one[0] == one[1] or other[0] == other[1]:
        return other if one[0] == one[1] else one
    return min(one[0], other[0]), max(one[1], other[1])


def overlap(one: Box, other: Box) -> Box:
    """Intersection of two boxes, dimension by dimension."""
    return tuple(meet(a, b) for a, b in zip(one, other, strict=True))


def contains(outer: Box, inner: Box) -> bool:
    """Whether every word of `inner` is in `outer`. Every box contains the empty box."""
    return volume(inner) == 0 or all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, inner, strict=True))


def consecutive(box: Box, frame: Box) -> bool:
    """Whether the words of `box` follow each other in an array that holds `frame`, in row-major order."""
    first = next((dim for dim, (low, high) in enumerate(box) if high - low != 1), len(box))
    return box[first + 1 :] == frame[first + 1 :]


def within(box: Box, frame: Box) -> tuple[slice, ...]:
    """Slices that select `box` from an array that holds `frame`."""
    return tuple(slice(b[0] - f[0], b[1] - f[0]) for b, f in zip(box, frame, strict=True))


def subtract(box: Box, hole: Box) -> Iterator[Box]:
    """Disjoint boxes whose union is `box` without `hole`."""
    inner = overlap(box, hole)
    if volume(inner) == 0:
        if volume(box):
            yield box
        return
    rest = list(box)
    for dim, (low, high) in enumerate(inner):
        for side in ((rest[dim][0], low), (high, rest[dim][1])):
            if side[0] < side[1]:
                yield (*rest[:dim], side, *rest[dim + 1 :])
        rest[dim] = (low, high)
