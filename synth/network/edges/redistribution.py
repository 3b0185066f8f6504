"""Words that move between two layers, for all pairs of their options at once.

A rank receives what it must own and does not own yet. So the words of a redistribution follow from
intersections of the boxes owned before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from synth.layer.axes import SPATIAL, Tensor
from synth.layer.nest import Nest
from synth.network.edges.moved_rows import boxes_after, moved_rows_words
from synth.network.edges.moved_words import moved_words
from synth.network.edges.user_rows import user_bounds, windows_with_gaps
from synth.network.graph import Edge, Network, Path
from synth.network.grids.box_rows import FLAT, Array, BoxRows
from synth.network.grids.layer_class import LayerClass


class Boxes(Protocol):
    """The boxes of some placed grids over `procs` ranks, as `OwnedBoxes` has them."""

    procs: int

    def rows(self, tensor: Tensor) -> BoxRows:
        """The boxes of a tensor."""


class EdgeEnd(NamedTuple):
    """One end of an edge: the class of a layer, the boxes of its options, and the options; None for all."""

    layer_class: LayerClass
    boxes: Boxes
    options: Array | None = None

    def rows(self, tensor: Tensor) -> BoxRows:
        """The boxes of a tensor."""
        found = self.boxes.rows(tensor)
        if self.options is None or np.array_equal(self.options, np.arange(len(found.row[0]))):
            return found
        return found.take(self.options)


def redistribution_words(
    edge: Edge,
    source: EdgeEnd,
    target: EdgeEnd,
    *,
    single: Sequence[bool],
    back: bool,
) -> Array:
    """Words of an edge by (source option, target option).

    single: see `single_positions`. back: whether to add the words of the gradient.
    Of an edge that ends where it begins, only entries with twice the same option have a meaning.
    """
    layer_class = target.layer_class
    tensor = layer_class.input_tensor if edge.role == "in" else layer_class.output_tensor
    have = source.rows(source.layer_class.output_tensor)
    want = target.rows(tensor)
    if source.layer_class.transposed:
        have = in_user_rows(have, source.layer_class.nest, source.layer_class.rows)
    if edge.role == "out" and layer_class.transposed:
        want = in_user_rows(want, layer_class.nest, layer_class.rows)
    have = _after(have, edge.source_path, source.boxes.procs)
    if edge.moves_rows:
        there, again = moved_rows_words(have.spans, edge.target_path[-1], source.boxes.procs)
        words_of_option = there + again if back else there
        return np.repeat(words_of_option[:, None], len(words_of_option), axis=1)
    want = collapsed(_after(want, edge.target_path, target.boxes.procs), single)
    windows = windows_with_gaps(layer_class.nest) if edge.role == "in" and tensor == "In" else {}
    pairs = [(have, want)]
    if edge.channels:
        parts = ((each.source, each.target, each.count) for each in edge.channels)
        pairs = [cut_channels(have, want, part) for part in parts]
    words = [there + again for there, again in (moved_words(*pair, windows, back) for pair in pairs)]
    total: Array = np.sum(words, axis=0)
    return total


def _after(boxes: BoxRows, path: Path, procs: int) -> BoxRows:
    return BoxRows.of(boxes_after(boxes.spans, path, procs)) if path else boxes


def single_positions(network: Network, edge: Edge) -> tuple[bool, ...]:
    """Per dimension of `FLAT`, whether the source has one position there for all of its target.

    Such a source is a gate: the factor of a product with one word per channel.
    """
    one, other = ((1,) * (5 - len(shape)) + shape[2:] for shape in network.end_shapes(edge))
    gate = edge.role == "out" and one != other
    return tuple(gate and at > 1 and one[at - 2] == 1 for at in range(len(FLAT)))


def in_user_rows(boxes: BoxRows, nest: Nest, rows: Sequence[int]) -> BoxRows:
    """Boxes of a nest's In, in rows of the user's tensor. Rows that no window reads join the row before."""
    for dim, size in zip(SPATIAL[len(SPATIAL) - len(rows) :], rows, strict=True):
        window = nest.windows[dim]
        boxes = boxes.along(FLAT.index(dim), partial(user_bounds, window, size))
    return boxes


def cut_channels(source: BoxRows, target: BoxRows, part: tuple[int, int, int]) -> tuple[BoxRows, BoxRows]:
    """Both boxes cut to some channels, which both then number from 0.

    part: (first channel in the source, the same channel in the target, number of channels).
    """
    first, other, count = part

    def cut(boxes: BoxRows, begin: int) -> BoxRows:
        return boxes.along(FLAT.index("channel"), lambda bound: np.clip(bound - begin, 0, count))

    return cut(source, first), cut(target, other)


def collapsed(boxes: BoxRows, single: Sequence[bool]) -> BoxRows:
    """Boxes of a target that reads one position along the dimensions marked in `single`."""
    if not any(single):
        return boxes
    low, high = list(boxes.low), list(boxes.high)
    for at, one in enumerate(single):
        if one:
            low[at], high[at] = np.zeros_like(low[at]), np.minimum(1, high[at] - low[at])
    return BoxRows(tuple(low), tuple(high), boxes.row)
