"""From the outputs of a network to its input: what each rank needs of a tensor, and what it computes.

A reader's computed box must be known before the need of its sources. What is needed and not computed is
fetched from the owners, once for all readers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from synth.network.graph import Network
from synth.network.grids.box_rows import Array
from synth.network.margins.boxes import common, hull, reads, sizes, widened
from synth.network.margins.row_graph import INPUT, RowGraph, RowTensor

ALL_ROWS = 2**40  # a margin that no need exceeds
Rows = tuple[int, ...]  # the margin of a tensor along d, h and w
NOTHING: Rows = (0, 0, 0)


class Boxes(NamedTuple):
    """Of a tensor, by rank: what covered readers need, and what the rank computes; see `boxes`."""

    need: Array
    computed: Array


class Cost(NamedTuple):
    """words: that the most-receiving rank fetches. work: extra multiply-adds of the rank with most."""

    words: int
    work: float


@dataclass(frozen=True)
class Walked:
    """The boxes of all tensors of a graph, for some margins."""

    graph: RowGraph
    boxes: dict[str, Boxes]

    def fetched(self, name: str) -> Array:
        """Words of a tensor that each rank fetches."""
        return fetched_words(*self.boxes[name])

    def returned(self, name: str) -> Array:
        """Words of gradients that each rank receives from those that have fetched its words of a tensor."""
        own, (need, computed) = self.graph[name].own, self.boxes[name]
        both, found = common(need, computed), np.zeros(own.shape[2], np.int64)
        for rank in range(own.shape[2]):
            mine = own[:, :, rank, None]
            found[rank] = (sizes(common(need, mine)) - sizes(common(both, mine))).sum()
        return found

    def extra_work(self) -> Array:
        """Multiply-adds of each rank on rows that others own."""
        each = (extra_work(self.graph[name], boxes.computed) for name, boxes in self.boxes.items())
        total: Array = np.sum(list(each), axis=0)
        return total

    def own_work(self) -> Array:
        """Multiply-adds of each rank on the rows of covered tensors that it owns."""
        each = (tensor.work * positions(tensor.own) for tensor in self.graph.values() if tensor.covered)
        total: Array = np.sum(list(each), axis=0)
        return total

    def rounds(self, network: Network, exchanging: Collection[str]) -> int:
        """The longest chain of fetches and of layers that exchange words, each of which waits for others.

        exchanging: layers that are not covered, and receive words themselves.
        """
        depth = {INPUT: self._fetches(INPUT)}
        for node in network.nodes.values():
            before = max((depth[name] for name in node.inputs), default=0)
            depth[node.name] = before + (node.name in exchanging) + self._fetches(node.name)
        return max(depth.values())

    def _fetches(self, name: str) -> int:
        return int(name in self.graph and self.fetched(name).max() > 0)


def readers(graph: RowGraph) -> dict[str, list[RowTensor]]:
    """Tensor -> the covered tensors that read it."""
    found: dict[str, list[RowTensor]] = {name: [] for name in graph}
    for tensor in graph.values():
        for source in dict.fromkeys(tensor.sources):
            found[source].append(tensor)
    return found


def walk(graph: RowGraph, rows: Mapping[str, Rows]) -> Walked:
    """What every rank needs and computes of every tensor. rows: the margins; none for tensors left out."""
    by, found = readers(graph), dict[str, Boxes]()
    for name in reversed(graph):
        tensor = graph[name]
        parts = [reads(found[each.name].computed, each.windows, tensor.shape) for each in by[name]]
        need = reduce(hull, parts, np.zeros_like(tensor.own))
        found[name] = Boxes(need, computed_box(tensor, need, rows.get(name, NOTHING)))
    return Walked(graph, {name: found[name] for name in graph})


def computed_box(tensor: RowTensor, need: Array, rows: Sequence[int | Array]) -> Array:
    """What ranks compute of a tensor of which they need some rows. need: one choice, or a stack of some."""
    if tensor.joined:
        return need
    own = np.tile(tensor.own, need.shape[2] // tensor.own.shape[2])
    if not tensor.covered:
        return own
    return widened(own, need, (ALL_ROWS,) * len(rows) if tensor.free else rows)


def fetched_words(need: Array, computed: Array) -> Array:
    """Words that each rank needs and does not compute, so receives. The boxes are those of one tensor."""
    return sizes(need) - sizes(common(need, computed))


def extra_work(tensor: RowTensor, computed: Array) -> Array:
    """Multiply-adds of each rank on rows of a tensor that it does not own."""
    if not tensor.work:
        return np.zeros(computed.shape[2])
    own = np.tile(positions(tensor.own), computed.shape[2] // tensor.own.shape[2])
    more: Array = tensor.work * (positions(computed) - own)
    return more


def positions(boxes: Array) -> Array:
    """Positions of each rank's box, over all samples."""
    lengths: Array = (boxes[[0, 2, 3, 4], 1] - boxes[[0, 2, 3, 4], 0]).prod(axis=0)
    return lengths
