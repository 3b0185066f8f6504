"""Many half-open intervals at once, as arrays of their lows and their highs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.nest import Window

Many = NDArray[Any]  # int64
Spans = tuple[Many, Many]  # lows and highs of many intervals


def covered(intervals: Spans, spans: Spans) -> Many:
    """Positions of all intervals inside each span, one that several intervals hold counted several times.

    Intervals and spans are arrays of lows and highs; the result has the shape of the spans.
    """
    total = np.zeros(np.shape(spans[0]), np.int64)
    for edges, sign in zip(intervals, (1, -1), strict=True):  # positions from an edge on
        edges = np.sort(edges)
        wide = np.int64 if len(edges) * int(max(edges[-1], spans[1].max())) < 2**62 else object
        sums = np.concatenate([[0], np.cumsum(edges.astype(wide))])
        for ends, side in zip(spans, (-1, 1), strict=True):
            before = np.searchsorted(edges, ends)
            total = total + sign * side * (ends.astype(wide) * before - sums[before])
    exact: Many = total.astype(np.int64)
    return exact


def cut(whole: Spans, parts: int, index: Any) -> Spans:
    """One of `parts` equal pieces of intervals, the longer ones first."""
    low, high = whole
    size, longer = (high - low) // parts, (high - low) % parts
    start = low + index * size + np.minimum(index, longer)
    return start, start + size + (index < longer)


def meet(one: Spans, other: Spans) -> Spans:
    """What two intervals share; empty ones lie where the later one begins."""
    low = np.maximum(one[0], other[0])
    return low, np.maximum(low, np.minimum(one[1], other[1]))


def lengths(spans: Spans) -> Many:
    """How long each interval is."""
    return spans[1] - spans[0]


def visited(window: Window, block: Spans, tiles: int, within: Spans) -> Many:
    """Rows of `within` that the tiles of blocks read, a row counted once for every tile that reads it.

    Like blocks, tiles differ by one position at most: the longer ones first, then the others.
    """
    low, high = block
    size, longer = (high - low) // tiles, (high - low) % tiles
    if tiles * window.size * window.stride >= 2**61:
        low, size, longer = (each.astype(object) for each in (low, size, longer))
    tail = window.dilation * (window.kernel - 1) + 1 - window.padding
    total: Many = low * 0
    for start, rows, count in (
        (low, size + 1, longer),
        (low + longer * (size + 1), size, (tiles - longer) * (size > 0)),
    ):
        begin, step = window.stride * start - window.padding, window.stride * np.maximum(rows, 1)
        end = window.stride * (start + rows - 1) + tail
        total = total + _clipped(end, step, count, within) - _clipped(begin, step, count, within)
    exact: Many = total.astype(np.int64)
    return exact


def _clipped(first: Many, step: Many, count: Many, within: Spans) -> Many:
    """The sum of `count` numbers, `first` and every `step` from there, each clipped to `within`."""
    low, high = within
    below = np.clip(-((first - low) // step), 0, count)
    upto = np.clip(-((first - high) // step), below, count)
    inside = upto - below
    middle = inside * first + step * ((below + upto - 1) * inside // 2)
    total: Many = low * below + middle + high * (count - upto)
    return total
