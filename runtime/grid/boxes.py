"""Boxes of half-open intervals, and the input rows that output rows read.

An interval is `(low, high)`. A box has one interval per dimension of a tensor. What a
rank owns, needs and sends is always a box.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

REMEMBERED = 2**14  # cached results per function: all steps have the same arguments
Interval = tuple[int, int]
Box = tuple[Interval, ...]


class Window(NamedTuple):
    """How output rows read input rows along one dimension; unread rows do not count.

    Output row `o` reads input rows `stride·o + dilation·tap - padding`. Input row `i`
    is row `first + step·i` of the user's tensor; where the stride leaves gaps, only
    the rows `kept` of every `period`, counted from the first padded one, are read.

    turned: output rows, if blocks along this dimension are of input rows; else 0.
    """

    size: int  # input rows
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    first: int = 0
    step: int = 1
    period: int = 1
    kept: tuple[int, ...] = (0,)
    turned: int = 0


@lru_cache(REMEMBERED)
def cut(whole: Interval, parts: int, index: int) -> Interval:
    """Part `index` of `parts`, as torch.tensor_split cuts: longer parts come first."""
    low, high = whole
    size, longer = divmod(high - low, parts)
    start = low + index * size + min(index, longer)
    return start, start + size + (1 if index < longer else 0)


def intersect(one: Interval, other: Interval) -> Interval:
    """The positions in both intervals."""
    low = max(one[0], other[0])
    return low, max(low, min(one[1], other[1]))


def held_rows(rows: Any, size: int, extent: int) -> Any:
    """The rows of `extent` that meet rows of `size`, if both divide one length evenly.

    rows: the two ends, or arrays of them. In adaptive pooling these read those.
    """
    low, high = rows
    return low * extent // size, -(-high * extent // size)


def first_rows(rows: Any, size: int, extent: int) -> Any:
    """The rows of `extent` whose first row of `size` is among some. rows: as above."""
    low, high = rows
    return -(-low * extent // size), -(-high * extent // size)


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals between the positions that no given interval crosses."""
    found: list[Interval] = []
    for low, high in sorted(set(intervals)):
        if found and low < found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


@lru_cache(REMEMBERED)
def overlap(one: Box, other: Box) -> Box:
    """The words in both boxes."""
    return tuple(intersect(a, b) for a, b in zip(one, other, strict=True))


@lru_cache(REMEMBERED)
def shape(box: Box) -> tuple[int, ...]:
    """Extent of a box along each dimension."""
    return tuple(high - low for low, high in box)


@lru_cache(REMEMBERED)
def volume(box: Box) -> int:
    """TrafficCounter in a box."""
    return math.prod(shape(box))


@lru_cache(REMEMBERED)
def within(box: Box, frame: Box) -> tuple[slice, ...]:
    """The slices that pick `box` out of a tensor that holds `frame`."""
    pairs = zip(box, frame, strict=True)
    return tuple(slice(b[0] - f[0], b[1] - f[0]) for b, f in pairs)


def outside(box: Box, other: Box) -> list[Box]:
    """Disjoint boxes of the words of `box` that are not in `other`."""
    common = overlap(box, other)
    if not volume(common):
        return [box] if volume(box) else []
    pieces, rest = [], list(box)
    for dim, ((low, high), (first, last)) in enumerate(zip(box, common, strict=True)):
        for interval in ((low, first), (last, high)):
            if interval[0] < interval[1]:
                pieces.append((*rest[:dim], interval, *rest[dim + 1 :]))
        rest[dim] = (first, last)
    return pieces


def with_interval(box: Box, dim: int, interval: Interval) -> Box:
    """A box with another interval along one dimension."""
    return (*box[:dim], interval, *box[dim + 1 :])


def consecutive(box: Box, frame: Box) -> bool:
    """Whether the words of `box` are contiguous in a tensor over `frame`."""
    sizes = shape(box)
    first = next((dim for dim, size in enumerate(sizes) if size != 1), len(sizes))
    return box[first + 1 :] == frame[first + 1 :]


def tile_indices(step: int, tiles: dict[str, int]) -> dict[str, int]:
    """Axis -> index of its tile in a step; `tiles` lists the outermost loop first."""
    indices = {}
    for axis, count in reversed(tiles.items()):
        step, indices[axis] = divmod(step, count)
    return indices


@lru_cache(REMEMBERED)
def input_rows(rows: Interval, window: Window) -> Interval:
    """The input rows that a block reads, without padding.

    Those of its output rows; the block itself, if it is one of input rows.
    """
    if window.turned:
        return rows
    low, high = rows
    if high <= low:
        return 0, 0
    first = max(0, window.stride * low - window.padding)
    last = window.stride * (high - 1) + window.dilation * (window.kernel - 1) + 1
    last = min(window.size, last - window.padding)
    return (first, last) if first < last else (0, 0)


@lru_cache(REMEMBERED)
def output_rows(rows: Interval, window: Window) -> Interval:
    """The output rows of a block; if it is one of input rows, those that read any."""
    if not window.turned:
        return rows
    low, high = rows
    span = window.dilation * (window.kernel - 1)
    first = max(0, -(-(low + window.padding - span) // window.stride))
    last = min(window.turned, (high - 1 + window.padding) // window.stride + 1)
    return (first, last) if low < high and first < last else (0, 0)


@lru_cache(REMEMBERED)
def zeros_around(rows: Interval, window: Window) -> tuple[int, int]:
    """Zeros before and after the rows that a block reads, as its output rows see them.

    They are those of the padding. A block of input rows also has zeros in place of the
    rows of its neighbours.
    """
    low, high = output_rows(rows, window)
    begin = window.stride * low - window.padding
    frame = window.stride * (high - low - 1) + window.dilation * (window.kernel - 1) + 1
    first, last = input_rows(rows, window)
    if first == last:
        return frame, 0
    return first - begin, begin + frame - last


def widen(own: Interval, need: Interval, parts: int, part: int) -> Interval:
    """The rows of `need` that a part sends: its own, and at the ends those beyond."""
    low = need[0] if part == 0 else own[0]
    high = need[1] if part == parts - 1 else own[1]
    return intersect((low, max(low, high)), need)


def source_rows(rows: Interval, window: Window) -> list[int]:
    """The rows of the user's tensor for an interval of input rows."""
    found = []
    for row in range(*rows):
        whole, rest = divmod(row + window.padding, len(window.kept))
        place = row
        if window.period != len(window.kept):
            place = whole * window.period + window.kept[rest]
        found.append(window.first + window.step * place)
    return found
