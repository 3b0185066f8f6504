"""Rows of In that many blocks, or their tiles, read, in closed form: 2^40 tiles cost as much as one."""

from __future__ import annotations

import numpy as np

from synth.layer.interval_arrays import Many, Spans
from synth.layer.window import Window


def reached(window: Window, block: Spans) -> Spans:
    """`Window.reach` for arrays: the input rows that blocks of output positions read."""
    low, high = block
    first = np.maximum(0, window.stride * low - window.padding)
    last = np.minimum(window.size, window.stride * (high - 1) + window.span - window.padding)
    empty = (high <= low) | (last <= first)
    return np.where(empty, 0, first), np.where(empty, 0, last)


def visited(window: Window, block: Spans, tiles: int, within: Spans) -> Many:
    """Rows of `within` that the tiles of blocks read, a row counted once for every tile that reads it.

    Like blocks, tiles differ by one position at most: the longer ones first, then the others.
    """
    low, high = block
    size, longer = (high - low) // tiles, (high - low) % tiles
    if tiles * window.size * window.stride >= 2**61:
        low, size, longer = (each.astype(object) for each in (low, size, longer))
    tail = window.span - window.padding
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
