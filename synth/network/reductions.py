"""Reductions of a network: global and adaptive pooling, and means, sums and extrema of positions.

Each rank reduces the rows that it has of every window, so a reduction lies where its input lies. The parts of
a value go to its owner. A block of rows owns the values of whose windows it has the first row. Where no block
has two of them, all blocks whose first rows are in one window divide its values along the longest dimension.
So the planner does not choose a grid for a reduction. `synth.runtime.rules.reductions` does the same on
the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from synth.layer.interval_arrays import Many, Spans, covered, cut
from synth.runtime.grid.boxes import first_rows, held_rows

if TYPE_CHECKING:
    from synth.network.graph import Node


@dataclass(frozen=True)
class Reduction:
    """What a node makes of the positions of some channels: its name, and the shapes before and after.

    Along each dimension, row i of n after it reads the rows ⌊i·size/n⌋ to ⌈(i+1)·size/n⌉ of `size` before it.
    numbers: that a part of a value has. With an extremum travels where it is, or how often it occurs.
    """

    name: str
    before: tuple[int, ...]
    shape: tuple[int, ...]
    numbers: int = 1

    @classmethod
    def of(cls, name: str, node: Node, channels: int) -> Reduction:
        """That of a node of kind `globalpool`, of some of its channels."""
        before, after = ((n, channels, *rows) for n, _, *rows in (node.in_shape, node.shape))
        return cls(name, before, after, 2 if node.maximum else 1)

    @property
    def whole(self) -> bool:
        """Whether every window has all rows of a dimension."""
        return all(n == 1 for _, _, n in self.reduced(len(self.shape)))

    def reduced(self, dims: int) -> list[tuple[int, int, int]]:
        """(place among `dims` dimensions, size before, size after) of the reduced dimensions."""
        rows = enumerate(zip(self.before, self.shape, strict=True), dims - len(self.shape))
        return [(place, size, n) for place, (size, n) in rows if size != n]


def layer_below(nodes: Mapping[str, Node], name: str) -> str | None:
    """The planned node in whose layout a value lies, whole; None where there is no such node."""
    while name in nodes:
        node = nodes[name]
        if node.layer is not None:
            return name
        moved = node.kind == "reindex" and node.dims[:2] not in ((), (0, 1))
        if node.kind in ("gathered", "cat") or moved or not node.inputs:
            return None
        name = node.inputs[0]
    return None


def held_boxes(boxes: Spans, last: Reduction) -> Spans:
    """The values of which every rank has parts; boxes are by (dimension of `FLAT`, option, rank)."""
    low, high = (bound.copy() for bound in boxes)
    used = (high > low).all(axis=0)
    for place, size, n in last.reduced(len(low)):
        low[place], high[place] = held_rows((low[place], high[place]), size, n)
    high[0] = np.where(used, high[0], low[0])
    return low, high


def home_boxes(boxes: Spans, last: Reduction) -> Spans:
    """The values that every rank owns, with all ranks of an equal box."""
    low, high = (bound.copy() for bound in boxes)
    used = (high > low).all(axis=0)
    for place, size, n in last.reduced(len(low)):
        rows = low[place].copy()
        low[place], high[place] = first_rows((rows, high[place]), size, n)
        found = np.where(used, high[place] - low[place], 0)
        joins = (found == 0) & (found.max(axis=1, keepdims=True) <= 1)
        low[place] = np.where(joins, rows * n // size, low[place])
        high[place] = np.where(joins, low[place] + 1, high[place])
    high[0] = np.where(used, high[0], low[0])
    return low, high


def owned_boxes(boxes: Spans, last: Reduction, procs: int) -> Spans:
    """The values that every rank owns after a reduction."""
    low, high = home_boxes(boxes, last)
    members, place = _sharing(low, high, procs)
    longest = (high - low).argmax(axis=0)
    for dim in range(len(low)):
        here = longest == dim
        first, end = cut((low[dim], high[dim]), members, place)
        low[dim], high[dim] = np.where(here, first, low[dim]), np.where(here, end, high[dim])
    return low, high


def reduction_words(boxes: Spans, last: Reduction, procs: int) -> tuple[Many, Many]:
    """Words that the most-receiving rank receives, of parts of values, and of gradients; by option."""
    held, own = held_boxes(boxes, last), owned_boxes(boxes, last, procs)
    words, parts = ((b - a).prod(axis=0, dtype=np.int64) for a, b in (held, own))
    owned = parts
    used: Many = np.all(boxes[1] > boxes[0], axis=0)
    for place, *_ in last.reduced(len(boxes[0])):
        parts = parts // np.maximum(own[1][place] - own[0][place], 1)
        for option, ranks in enumerate(used):
            _, each = np.unique(boxes[0][place, option, ranks], return_index=True)
            blocks = held[0][place, option, ranks][each], held[1][place, option, ranks][each]
            parts[option] *= covered(blocks, (own[0][place, option], own[1][place, option]))
    return last.numbers * (parts - owned).max(axis=1), (words - owned).max(axis=1)


def _sharing(low: Many, high: Many, procs: int) -> tuple[Many, Many]:
    """How many ranks hold the box of a rank, and the place of the rank among them; by (option, rank).

    Boxes are equal or disjoint, so their lower ends tell them apart. Of a sample of the ranks the numbers
    are scaled.
    """
    options, ranks = low.shape[1:]
    key = np.zeros((options, ranks), np.int64)
    for bound in low:
        key = key * (int(bound.max(initial=0)) + 1) + bound
    empty = (high <= low).any(axis=0)
    key = np.where(empty, -1 - np.arange(ranks), key)
    order = key.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(key, order, axis=1)
    starts = np.ones((options, ranks + 1), bool)
    starts[:, 1:-1] = ordered[:, 1:] != ordered[:, :-1]
    at = np.arange(ranks)
    begin = np.maximum.accumulate(np.where(starts[:, :-1], at, 0), axis=1)
    end = np.minimum.accumulate(np.where(starts[:, 1:], at + 1, ranks)[:, ::-1], axis=1)[:, ::-1]
    members, place = np.empty_like(key), np.empty_like(key)
    np.put_along_axis(members, order, end - begin, axis=1)
    np.put_along_axis(place, order, at - begin, axis=1)
    if procs > ranks:  # a sample
        members = np.where(members > 1, members * procs // ranks, members)
        place = np.minimum(place * procs // ranks, members - 1)
    return members, place
