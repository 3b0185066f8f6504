"""Words that move between two layers, for all pairs of their options at once.

A rank receives what it must own and does not own yet. So the words of a redistribution follow from
intersections of the boxes owned before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from synth.layer.axes import SPATIAL
from synth.layer.interval_arrays import Spans
from synth.layer.nest import Nest
from synth.network.graph import Edge, Network
from synth.network.planner.layer_class import LayerClass
from synth.network.planner.moved_rows import boxes_after, moved_rows_words
from synth.network.planner.owned_boxes import FLAT, Array, OwnedBoxes


class EdgeEnd(NamedTuple):
    """One end of an edge: the class of a layer, and the boxes of its options."""

    layer_class: LayerClass
    boxes: OwnedBoxes


def redistribution_words(
    edge: Edge, source: EdgeEnd, target: EdgeEnd, *, single: Sequence[bool], back: bool
) -> Array:
    """Words of an edge by (source option, target option).

    single: see `single_positions`. back: whether to add the words of the gradient.
    Of an edge that ends where it begins, only entries with twice the same option have a meaning.
    """
    layer_class = target.layer_class
    tensor = layer_class.input_tensor if edge.role == "in" else layer_class.output_tensor
    have = source.boxes.flat(source.layer_class.output_tensor)[:2]
    want = target.boxes.flat(tensor)[:2]
    if source.layer_class.transposed:
        have = in_user_rows(have, source.layer_class.nest, source.layer_class.rows)
    if edge.role == "out" and layer_class.transposed:
        want = in_user_rows(want, layer_class.nest, layer_class.rows)
    have = boxes_after(have, edge.source_path)
    if edge.moves_rows:
        there, again = moved_rows_words(have, edge.target_path[-1])
        words_of_option = there + again if back else there
        return np.repeat(words_of_option[:, None], len(words_of_option), axis=1)
    want = collapsed(boxes_after(want, edge.target_path), single)
    tables = rows_read(layer_class.nest) if edge.role == "in" and tensor == "In" else {}
    pairs = [(have, want)]
    if edge.channels:
        parts = ((each.source, each.target, each.count) for each in edge.channels)
        pairs = [cut_channels(have, want, part) for part in parts]
    moved = (moved_words(*pair, tables) for pair in pairs)
    words = [there + again if back else there for there, again in moved]
    total: Array = np.sum(words, axis=0)
    return total


def single_positions(network: Network, edge: Edge) -> tuple[bool, ...]:
    """Per dimension of `FLAT`, whether the source has one position there for all of its target.

    Such a source is a gate: the factor of a product with one word per channel.
    """
    one, other = ((1,) * (5 - len(shape)) + shape[2:] for shape in network.end_shapes(edge))
    gate = edge.role == "out" and one != other
    return tuple(gate and at > 1 and one[at - 2] == 1 for at in range(len(FLAT)))


def in_user_rows(boxes: Spans, nest: Nest, rows: Sequence[int]) -> Spans:
    """Boxes of a nest's In, in rows of the user's tensor. Rows that no window reads join the row before."""
    low, high = (each.copy() for each in boxes)
    for dim, size in zip(SPATIAL[len(SPATIAL) - len(rows) :], rows, strict=True):
        window, at = nest.windows[dim], FLAT.index(dim)
        begins = np.array([0, *(window.source(i) for i in range(1, window.size)), size])
        low[at], high[at] = begins[low[at]], begins[high[at]]
    return low, high


def cut_channels(source: Spans, target: Spans, part: tuple[int, int, int]) -> tuple[Spans, Spans]:
    """Both boxes cut to some channels, which both then number from 0.

    part: (first channel in the source, the same channel in the target, number of channels).
    """
    first, other, count = part
    at = FLAT.index("channel")
    result = []
    for (low, high), begin in ((source, first), (target, other)):
        low, high = low.copy(), high.copy()
        low[at], high[at] = (np.clip(each[at] - begin, 0, count) for each in (low, high))
        result.append((low, high))
    return result[0], result[1]


def collapsed(boxes: Spans, single: Sequence[bool]) -> Spans:
    """Boxes of a target that reads one position along the dimensions marked in `single`."""
    low, high = (each.copy() for each in boxes)
    for at, one in enumerate(single):
        if one:
            low[at], high[at] = 0, np.minimum(1, high[at] - low[at])
    return low, high


def rows_read(nest: Nest) -> dict[int, Array]:
    """Position in `FLAT` -> the user's rows that a nest reads, for dimensions where it may skip some."""
    tables = {}
    for dim in SPATIAL:
        window = nest.windows[dim]
        rows = np.array([window.source(i) for i in range(window.size)])
        if window.size and (window.stride > 1 or rows[-1] != window.size - 1):
            tables[FLAT.index(dim)] = rows
    return tables


def moved_words(source: Spans, target: Spans, tables: dict[int, Array]) -> tuple[Array, Array]:
    """Words that the most-receiving rank receives: of the value, and of its gradient on the way back.

    `source` and `target` are (lows, highs) of the boxes before and after, as `OwnedBoxes.flat` returns them.
    `tables`, from `rows_read`, translate rows of the source if the target skips rows. Both results have one
    entry per (source option, target option).
    """
    low, high = (each.copy() for each in source)
    for dim, rows in tables.items():
        low[dim] = np.searchsorted(rows, low[dim])
        high[dim] = np.searchsorted(rows, high[dim])
    want, have = _volumes(*target), _volumes(low, high)  # rows that no window reads have no gradient
    split = [d for d in range(len(FLAT)) if not _all_whole(low[d], high[d], target[0][d], target[1][d])]
    forward = np.empty((low.shape[1], target[0].shape[1]), dtype=np.int64)
    backward = np.empty_like(forward)
    narrow = max(int(want.max()), int(have.max())) < 2**31
    scale = np.ones(1, dtype=np.int32 if narrow else np.int64)  # words per position of the split dimensions
    for d in set(range(len(FLAT))) - set(split):
        scale = scale * max(0, int(high[d].max() - low[d].min()))
    for index in range(low.shape[1]):
        common = np.broadcast_to(scale, target[0].shape[1:])
        for d in split:
            overlap = np.minimum(high[d, index], target[1][d]) - np.maximum(low[d, index], target[0][d])
            common = common * np.maximum(overlap, 0)
        common = np.where(have[index] == 0, 0, np.where(want == 0, 0, common))
        forward[index] = (want - common).max(axis=1)
        backward[index] = (have[index] - common).max(axis=1)
    return forward, backward


def _all_whole(*bounds: Array) -> bool:
    """Whether every box, before and after, spans the same whole dimension."""
    low, high, low2, high2 = (int(b.flat[0]) for b in bounds)
    return low == low2 and high == high2 and all(bool((b == b.flat[0]).all()) for b in bounds)


def _volumes(low: Array, high: Array) -> Array:
    volume = np.ones(low.shape[1:], dtype=np.int64)
    for d in range(len(low)):
        volume = volume * np.maximum(high[d] - low[d], 0)
    return volume
