"""Boxes of all ranks at once: what layers read, and rows around the own block.

A box array has the bounds (low, high) by (dimension of `FLAT`, 2, rank). An empty box is (0, 0) along every
dimension, so that it widens no hull. A *stack* has the boxes of all ranks for one choice, then those for the
next, along the last dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from synth.network.grids.box_rows import Array

SPATIAL_PLACES = (2, 3, 4)  # of `FLAT`


class RowWindow(NamedTuple):
    """What a row of a result reads along one spatial dimension.

    spread: whether an input row adds to several rows of the result, as in a transposed convolution: row `i`
    adds to rows `stride * i + dilation * tap - padding`. Otherwise row `o` reads `stride * o + dilation * tap
    - padding`.
    """

    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    spread: bool = False

    @property
    def plain(self) -> bool:
        """Whether every row reads itself alone."""
        return self.kernel == self.stride == 1 and not self.padding

    def read(self, low: Array, high: Array, size: int) -> Array:
        """The first row that intervals of the result read, and the end of the last one.

        size: rows of the source; others are padding.
        """
        if self.dilation > 1 or self.kernel < self.stride:  # between the rows that are read are others
            pairs = zip(low.tolist(), high.tolist(), strict=True)
            return np.array([_ends(self, size, *each) for each in pairs]).T.reshape(2, -1)
        reach = self.kernel - 1
        if self.spread:
            first, last = (
                -((reach - low - self.padding) // self.stride),
                (high - 1 + self.padding) // self.stride,
            )
        else:
            first, last = low * self.stride - self.padding, (high - 1) * self.stride - self.padding + reach
        found: Array = np.clip(np.stack([first, last + 1]), 0, size)
        return found


@lru_cache(2**16)
def _ends(window: RowWindow, size: int, low: int, high: int) -> tuple[int, int]:
    """The first row that an interval of the result reads, and the end of the last one; (0, 0) for none."""
    made, taps = np.arange(low, high)[:, None], window.dilation * np.arange(window.kernel)
    if window.spread:
        sums = made + window.padding - taps
        rows = sums[sums % window.stride == 0] // window.stride
    else:
        rows = (made * window.stride - window.padding + taps).ravel()
    inside = rows[(rows >= 0) & (rows < size)]
    return (int(inside.min()), int(inside.max()) + 1) if len(inside) else (0, 0)


def sizes(boxes: Array) -> Array:
    """Words of each rank's box."""
    lengths: Array = (boxes[:, 1] - boxes[:, 0]).prod(axis=0)
    return lengths


def normal(boxes: Array) -> Array:
    """The same boxes; an empty one is (0, 0) along every dimension."""
    empty = (boxes[:, 1] <= boxes[:, 0]).any(axis=0)
    return np.where(empty, 0, boxes)


def reads(boxes: Array, windows: Sequence[RowWindow], shape: Sequence[int]) -> Array:
    """The least boxes of a source with all that boxes of a result read, of all channels, without padding.

    shape: of the source, along `FLAT`.
    """
    found = boxes.copy()
    found[1, 0], found[1, 1] = 0, shape[1]
    for at, window in zip(SPATIAL_PLACES, windows, strict=True):
        if not window.plain:
            found[at] = window.read(boxes[at, 0], boxes[at, 1], shape[at])
    return normal(np.where(sizes(boxes) > 0, found, 0))


def hull(one: Array, other: Array) -> Array:
    """The least boxes with the rows of both."""
    low, high = np.minimum(one[:, 0], other[:, 0]), np.maximum(one[:, 1], other[:, 1])
    both = np.stack([low, high], axis=1)
    return np.where(sizes(one) == 0, other, np.where(sizes(other) == 0, one, both))


def common(one: Array, other: Array) -> Array:
    """The rows that are in both."""
    low, high = np.maximum(one[:, 0], other[:, 0]), np.minimum(one[:, 1], other[:, 1])
    return normal(np.stack([low, high], axis=1))


def widened(own: Array, need: Array, rows: Sequence[int | Array]) -> Array:
    """The own boxes, wider towards what is needed by at most some rows along each spatial dimension.

    A rank that owns or needs no rows computes what it owns.
    """
    found = own.copy()
    for at, more in zip(SPATIAL_PLACES, rows, strict=True):
        (low, high), (first, last) = own[at], need[at]
        found[at, 0] = np.minimum(low, np.maximum(low - more, first))
        found[at, 1] = np.maximum(high, np.minimum(high + more, last))
    return np.where((sizes(own) == 0) | (sizes(need) == 0), own, found)
