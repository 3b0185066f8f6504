"""Many half-open intervals at once, as arrays of their lows and their highs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def cut(whole: tuple[Any, Any], parts: Any, index: Any) -> Spans:
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


def widened(own: Spans, need: Spans, parts: Any, part: Any) -> Spans:
    """What a process carries of a row interval that its group needs: the ends go to the outermost parts."""
    low = np.where(part == 0, need[0], own[0])
    high = np.where(part == parts - 1, need[1], own[1])
    return meet((low, np.maximum(low, high)), need)
