"""Words that move between two layers, for all pairs of their options at once.

A rank receives what it must own and does not own yet: boxes are intersected, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from synth.layer.axes import SPATIAL
from synth.layer.nest import Nest
from synth.network.graph import Edge, Network
from synth.network.planner.candidates import Kind
from synth.network.planner.owned_boxes import FLAT, Array, Boxes


class Side(NamedTuple):
    """One end of an edge: a kind of layer, and the boxes of its options."""

    kind: Kind
    boxes: Boxes


def edge_words(edge: Edge, before: Side, after: Side, single: Sequence[bool], back: bool) -> Array:
    """Words of an edge by (source option, target option); `back`: with those of the gradient."""
    kind = after.kind
    tensor = kind.ends[0] if edge.role == "in" else kind.ends[1]
    have, want = before.boxes.flat(before.kind.ends[1])[:2], after.boxes.flat(tensor)[:2]
    if before.kind.rows:
        have = in_all_rows(have, before.kind.nest, before.kind.rows)
    if edge.role == "out" and kind.rows:
        want = in_all_rows(want, kind.nest, kind.rows)
    want = one_position(want, single)
    tables = rows_read(kind.nest) if edge.role == "in" and tensor == "In" else {}
    pairs = [(have, want)]
    if edge.channels:
        parts = ((each.source, each.target, each.count) for each in edge.channels)
        pairs = [some_channels(have, want, part) for part in parts]
    moved = (moved_words(*pair, tables) for pair in pairs)
    words = [there + again if back else there for there, again in moved]
    total: Array = np.sum(words, axis=0)
    return total


def single_positions(network: Network, edge: Edge) -> tuple[bool, ...]:
    """Dimensions of `FLAT` in which a gate has one position for all of its target."""
    shapes = (network.nodes[name].shape for name in (edge.source, edge.target))
    one, other = ((1,) * (5 - len(shape)) + shape[2:] for shape in shapes)
    gate = edge.role == "out" and one != other
    return tuple(gate and at > 1 and one[at - 2] == 1 for at in range(len(FLAT)))


def in_all_rows(span: tuple[Array, Array], nest: Nest, rows: Sequence[int]) -> tuple[Array, Array]:
    """Boxes of a nest's In among all rows of the tensor: rows that nothing reads go with those before."""
    low, high = (each.copy() for each in span)
    for dim, size in zip(SPATIAL[len(SPATIAL) - len(rows) :], rows, strict=True):
        window, at = nest.windows[dim], FLAT.index(dim)
        ends = np.array([0, *(window.source(i) for i in range(1, window.size)), size])
        low[at], high[at] = ends[low[at]], ends[high[at]]
    return low, high


def some_channels(
    source: tuple[Array, Array], target: tuple[Array, Array], part: tuple[int, int, int]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Both boxes cut to `part`: the first channel in either and how many, which both then call 0."""
    first, other, count = part
    at = FLAT.index("channel")
    result = []
    for (low, high), begin in ((source, first), (target, other)):
        low, high = low.copy(), high.copy()
        low[at], high[at] = (np.clip(each[at] - begin, 0, count) for each in (low, high))
        result.append((low, high))
    return result[0], result[1]


def one_position(span: tuple[Array, Array], dims: Sequence[bool]) -> tuple[Array, Array]:
    """What boxes want of an operand that has one position along some dimensions."""
    low, high = (each.copy() for each in span)
    for at, one in enumerate(dims):
        if one:
            low[at], high[at] = 0, np.minimum(1, high[at] - low[at])
    return low, high


def rows_read(nest: Nest) -> dict[int, Array]:
    """Position in `FLAT` -> the user's rows that reduced rows are, where they may not be all rows."""
    tables = {}
    for dim in SPATIAL:
        window = nest.windows[dim]
        rows = np.array([window.source(i) for i in range(window.size)])
        if window.size and (window.stride > 1 or rows[-1] != window.size - 1):
            tables[FLAT.index(dim)] = rows
    return tables


def moved_words(
    source: tuple[Array, Array], target: tuple[Array, Array], tables: dict[int, Array]
) -> tuple[Array, Array]:
    """Words that the most-receiving rank receives: forward, and of the gradient on the way back.

    `source` and `target` are (lows, highs) of the boxes before and after, as `Boxes.flat` gives them;
    `tables` translate rows of the source where the target skips rows. Results are (source, target) grids.
    """
    low, high = (each.copy() for each in source)
    for dim, rows in tables.items():
        low[dim] = np.searchsorted(rows, low[dim])
        high[dim] = np.searchsorted(rows, high[dim])
    want, have = _boxes_volume(*target), _boxes_volume(low, high)  # rows that nobody reads have no gradient
    cut = [d for d in range(len(FLAT)) if not _alike(low[d], high[d], target[0][d], target[1][d])]
    forward = np.empty((low.shape[1], target[0].shape[1]), dtype=np.int64)
    backward = np.empty_like(forward)
    narrow = max(int(want.max()), int(have.max())) < 2**31
    scale = np.ones(1, dtype=np.int32 if narrow else np.int64)
    for d in set(range(len(FLAT))) - set(cut):
        scale = scale * max(0, int(high[d].max() - low[d].min()))
    for index in range(low.shape[1]):
        common = np.broadcast_to(scale, target[0].shape[1:])
        for d in cut:
            met = np.minimum(high[d, index], target[1][d]) - np.maximum(low[d, index], target[0][d])
            common = common * np.maximum(met, 0)
        common = np.where(have[index] == 0, 0, np.where(want == 0, 0, common))
        forward[index] = (want - common).max(axis=1)
        backward[index] = (have[index] - common).max(axis=1)
    return forward, backward


def _alike(*bounds: Array) -> bool:
    """Whether every box, before and after, spans the same whole dimension."""
    low, high, low2, high2 = (int(b.flat[0]) for b in bounds)
    return low == low2 and high == high2 and all(bool((b == b.flat[0]).all()) for b in bounds)


def _boxes_volume(low: Array, high: Array) -> Array:
    volume = np.ones(low.shape[1:], dtype=np.int64)
    for d in range(len(low)):
        volume = volume * np.maximum(high[d] - low[d], 0)
    return volume
