"""Reductions of a network: global pooling, means, sums and extrema of positions, where their input lies.

Each rank reduces its own box. Ranks whose boxes have the same values send their parts to the owners of these
values: the ranks themselves, which divide them along the longest dimension. So the planner does not choose a
grid for a reduction. `synth.runtime.layers.rows.reduction` does the same on the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from synth.layer.interval_arrays import Many, Spans, cut

if TYPE_CHECKING:
    from synth.network.graph import Node


@dataclass(frozen=True)
class Reduction:
    """A node that reduces positions: its name, its shape, and the reduced dimensions, which keep extent 1.

    numbers: that a part of a value has. With an extremum travels where it is, or how often it occurs.
    """

    name: str
    shape: tuple[int, ...]
    over: tuple[int, ...]
    numbers: int = 1

    @classmethod
    def of(cls, node: Node) -> Reduction:
        """That of a node of kind `globalpool`, which reduces all positions if it names none."""
        over = node.dims or tuple(range(2, len(node.shape)))
        return cls(node.name, node.shape, over, 2 if node.maximum else 1)


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
    for dim in last.over:
        place = dim + len(low) - len(last.shape)
        low[place], high[place] = 0, 1
    high[0] = np.where(used, high[0], low[0])
    return low, high


def owned_boxes(boxes: Spans, last: Reduction, procs: int) -> Spans:
    """The values that every rank owns after a reduction."""
    low, high = held_boxes(boxes, last)
    members, place = _sharing(low, high, procs)
    longest = (high - low).argmax(axis=0)
    for dim in range(len(low)):
        here = longest == dim
        first, end = cut((low[dim], high[dim]), members, place)
        low[dim], high[dim] = np.where(here, first, low[dim]), np.where(here, end, high[dim])
    return low, high


def reduction_words(boxes: Spans, last: Reduction, procs: int) -> tuple[Many, Many]:
    """Words that the most-receiving rank receives, of parts of values, and of gradients; by option."""
    low, high = held_boxes(boxes, last)
    members, _ = _sharing(low, high, procs)
    first, end = owned_boxes(boxes, last, procs)
    held, own = ((b - a).prod(axis=0, dtype=np.int64) for a, b in ((low, high), (first, end)))
    return last.numbers * ((members - 1) * own).max(axis=1), (held - own).max(axis=1)


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
