"""Vectorized half-open intervals: arrays of lower ends and arrays of upper ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Many = NDArray[Any]  # int64
Spans = tuple[Many, Many]  # lower and upper ends of many intervals


def covered(intervals: Spans, windows: Spans) -> Many:
    """Per window, the sum over all intervals of the length of interval ∩ window.

    A position in several intervals counts once for each. The result has the shape of `windows`.
    """
    total = np.zeros(np.shape(windows[0]), np.int64)
    # The length of [a, b) ∩ [c, d) is r(d-a) - r(c-a) - r(d-b) + r(c-b), with r(n) = max(n, 0).
    for edges, sign in zip(intervals, (1, -1), strict=True):
        edges = np.sort(edges)
        wide = np.int64 if len(edges) * int(max(edges[-1], windows[1].max())) < 2**62 else object
        sums = np.concatenate([[0], np.cumsum(edges.astype(wide))])
        for ends, side in zip(windows, (-1, 1), strict=True):
            before = np.searchsorted(edges, ends)
            total = total + sign * side * (ends.astype(wide) * before - sums[before])
    exact: Many = total.astype(np.int64)
    return exact


def cut(whole: tuple[Any, Any], parts: Any, index: Any) -> Spans:
    """Part `index` of `parts` of each interval; see `intervals.cut`."""
    low, high = whole
    size, longer = (high - low) // parts, (high - low) % parts
    start = low + index * size + np.minimum(index, longer)
    return start, start + size + (index < longer)


def meet(one: Spans, other: Spans) -> Spans:
    """Pairwise intersections. An empty one is `(low, low)` with the larger lower end."""
    low = np.maximum(one[0], other[0])
    return low, np.maximum(low, np.minimum(one[1], other[1]))


def hull(one: Spans, other: Spans) -> Spans:
    """Pairwise smallest intervals that contain both; see `intervals.hull`."""
    none, only = one[0] == one[1], other[0] == other[1]
    low, high = np.minimum(one[0], other[0]), np.maximum(one[1], other[1])
    low, high = np.where(only, one[0], low), np.where(only, one[1], high)
    return np.where(none, other[0], low), np.where(none, other[1], high)


def lengths(spans: Spans) -> Many:
    """The length of each interval."""
    return spans[1] - spans[0]


def widened(own: Spans, need: Spans, parts: Any, part: Any) -> Spans:
    """The carried interval of each process: the rows of `need` that it sends to its group.

    `own` are the rows that part `part` of `parts` owns. The first part also carries the rows of `need`
    below its own, and the last part those above.
    """
    low = np.where(part == 0, need[0], own[0])
    high = np.where(part == parts - 1, need[1], own[1])
    return meet((low, np.maximum(low, high)), need)
