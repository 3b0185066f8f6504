"""Words of the values of layers with margins on every rank: what it computes, holds, and reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from synth.network.graph import Node
from synth.network.grids.box_rows import Array
from synth.network.margins.boxes import SPATIAL_PLACES, hull, reads, sizes
from synth.network.margins.row_graph import RowTensor, row_graph
from synth.network.margins.walk import walk
from synth.network.memory.timeline import Words

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan


class MarginWords:
    """The boxes of the tensors of a plan, in words. A plan without margins has no tensors."""

    def __init__(self, plan: NetworkPlan) -> None:
        graph = {} if plan.margins is None else row_graph(plan.network, plan.placed_grids, plan.request.procs)
        rows = {} if plan.margins is None else plan.margins.rows
        self.graph, self.walked = graph, walk(graph, rows)
        self.boxes = self.walked.boxes

    def covers(self, node: Node) -> bool:
        """Whether a node computes its box from what ranks hold of its inputs."""
        return node.name in self.graph and self.graph[node.name].covered

    def computed(self, name: str) -> Words:
        """Words that are computed of a tensor."""
        return self._words(self.boxes[name].computed)

    def held(self, name: str) -> Words:
        """Words that a rank has of a tensor once rows of others are there."""
        return self._words(hull(*self.boxes[name]))

    def own(self, name: str) -> Words:
        """Words that a rank owns of a tensor."""
        return self._words(self.graph[name].own)

    def messages(self, name: str) -> tuple[Words, Words]:
        """Words of messages with rows of a tensor: that each rank receives, and that it sends."""
        return self.walked.fetched(name).astype(np.float64), self.walked.returned(name).astype(np.float64)

    def is_fetched(self, name: str) -> bool:
        """Whether ranks have other words of a tensor than they compute, or wait for others that do."""
        if name not in self.graph or self.graph[name].joined:
            return False
        need, computed = self.boxes[name]
        lacks = bool(self.walked.fetched(name).any())
        return lacks or bool((hull(need, computed) != computed).any())

    def read(self, node: Node, source: str) -> Words:
        """Words of a tensor that a layer reads, without the zeros around it."""
        return self._words(self._read(self.graph[node.name], source))

    def padded(self, node: Node, source: str) -> Words:
        """Words of what a layer reads with the zeros that are laid around it; 0 on ranks that need none.

        torch lays zeros that are as many at both ends itself.
        """
        tensor = self.graph[node.name]
        box, made = self._read(tensor, source), self.boxes[node.name].computed
        lengths, uneven = (box[:, 1] - box[:, 0]).astype(np.float64), np.zeros(made.shape[2], bool)
        for at, window in zip(SPATIAL_PLACES, tensor.windows, strict=True):
            if window.plain or window.spread:
                continue
            first = made[at, 0] * window.stride - window.padding
            last = (made[at, 1] - 1) * window.stride - window.padding + window.dilation * (window.kernel - 1)
            before, after = box[at, 0] - first, last + 1 - box[at, 1]
            cut = (before < 0) | (before < after) | (before - after >= window.stride)
            uneven |= cut
            lengths[at] += np.where(cut, before + after, 0)
        found: Words = np.where(uneven & (sizes(box) > 0), lengths.prod(axis=0), 0.0)
        return found

    def _read(self, tensor: RowTensor, source: str) -> Array:
        return reads(self.boxes[tensor.name].computed, tensor.windows, self.graph[source].shape)

    @staticmethod
    def _words(boxes: Array) -> Words:
        return sizes(boxes).astype(np.float64)
