"""Rows of In that many blocks, or their tiles, read, in closed form: 2^40 tiles cost as much as one."""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.layer.interval_arrays import Many, Spans, cut, lengths, meet
from synth.layer.window import Window


def reached(window: Window, block: Spans) -> Spans:
    """`Window.reach` for arrays: the input rows that blocks of output positions read."""
    low, high = block
    first = np.maximum(0, -(-(window.stride * low - window.padding) // window.divisor))
    last = (window.stride * (high - 1) + window.span - 1 - window.padding) // window.divisor + 1
    last = np.minimum(window.size, last)
    empty = (high <= low) | (last <= first)
    return np.where(empty, 0, first), np.where(empty, 0, last)


def visited(window: Window, block: Spans, tiles: Any, within: Spans) -> Many:
    """Rows of `within` that the tiles of blocks read, a row counted once for every tile that reads it.

    tiles: the number of them in every block. Like blocks, they differ by one position at most: the longer
    ones first, then the others.
    """
    if window.divisor > 1:
        return _visited_one_by_one(window, block, tiles, within)
    low, high = block
    size, longer = (high - low) // tiles, (high - low) % tiles
    if int(np.max(tiles)) * window.size * window.stride >= 2**61:
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


def _visited_one_by_one(window: Window, block: Spans, tiles: int, within: Spans) -> Many:
    """`visited` of a turned window, tile by tile: where its rows begin is not linear in the tile."""
    total: Many = (block[0] - block[0]) * (within[0] - within[0])
    for tile in range(tiles):
        total = total + lengths(meet(reached(window, cut(block, tiles, tile)), within))
    return total


def _clipped(first: Many, step: Many, count: Many, within: Spans) -> Many:
    """The sum of `count` numbers, `first` and every `step` from there, each clipped to `within`."""
    low, high = within
    below = np.clip(-((first - low) // step), 0, count)
    upto = np.clip(-((first - high) // step), below, count)
    inside = upto - below
    middle = inside * first + step * ((below + upto - 1) * inside // 2)
    total: Many = low * below + middle + high * (count - upto)
    return total
