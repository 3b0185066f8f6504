"""Shuffles of a network: channels that become positions, positions that become channels, means of channels.

A shuffle lies where its input lies: the owner of the first word that a row of the result is made of owns the
row. Words move only where channels, or positions that become channels, are cut within the words of one row.
`synth.runtime.rules.shuffles` does the same on the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.layer.interval_arrays import Many, Spans
from synth.runtime.grid.boxes import first_rows, held_rows


@dataclass(frozen=True)
class Shuffle:
    """A node of kind `pixelshuffle`, `pixelunshuffle` or `channelmean`: its name, and its shapes.

    Along each dimension, row i of n after it reads the rows ⌊i·size/n⌋ to ⌈(i+1)·size/n⌉ of `size` before it.
    One of size and n divides the other.
    """

    name: str
    before: tuple[int, ...]
    shape: tuple[int, ...]

    def changed(self, dims: int) -> Iterator[tuple[int, int, int]]:
        """(place among `dims` dimensions, size before, size after) of those whose size changes."""
        places = (0, 1, *range(dims + 2 - len(self.shape), dims))
        for place, size, n in zip(places, self.before, self.shape, strict=True):
            if size != n:
                yield place, size, n


def boxes_of_shuffle(boxes: Spans, last: Shuffle) -> Spans:
    """What every rank owns of the result; boxes are by (dimension of `FLAT`, ..., rank)."""
    low, high = (bound.copy() for bound in boxes)
    for place, size, n in last.changed(len(low)):
        low[place], high[place] = first_rows((low[place], high[place]), size, n)
    return low, high


def shuffle_words(boxes: Spans, last: Shuffle) -> tuple[Many, Many]:
    """Words that the most-receiving rank receives, of values, and of gradients; by option."""
    low, high = boxes_of_shuffle(boxes, last)
    for place, size, n in last.changed(len(low)):
        low[place], high[place] = held_rows((low[place], high[place]), n, size)
    reads, own = np.maximum(high - low, 0).prod(axis=0), (boxes[1] - boxes[0]).prod(axis=0)
    both = np.maximum(np.minimum(high, boxes[1]) - np.maximum(low, boxes[0]), 0).prod(axis=0)
    return (reads - both).max(axis=1), (own - both).max(axis=1)
