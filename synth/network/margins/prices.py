"""What rows cost that are fetched, or computed although others own them: words, or seconds on a machine.

It is what the rank pays that pays most, for several choices of margins at once. Boxes are a stack: those of
all ranks for one choice, then those for the next, see `boxes`. A result has one number per choice.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

import numpy as np

from synth.layer.axes import X_AXES, Axis
from synth.layer.passes import Pass, Passes
from synth.machine.collectives import Group, exchange_seconds
from synth.machine.hierarchy import Machine
from synth.machine.layer_time import compute_seconds
from synth.machine.rank_groups import group_of
from synth.network.graph import Network, Node
from synth.network.grids.box_rows import FLAT, Array
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.margins.boxes import sizes
from synth.network.margins.row_graph import RowTensor
from synth.network.margins.walk import fetched_words
from synth.network.step_time.between import accesses


def by_choice(amounts: Array, tensor: RowTensor) -> Array:
    """The most of any rank, by choice. amounts: of a stack, by rank."""
    most: Array = amounts.reshape(-1, tensor.own.shape[2]).max(axis=1)
    return most


class WordPrices:
    """Words that are received: computing costs none.

    exchange: words that an exchange counts for beside its own. graded: the tensors whose gradients return to
    the owners; as many words then come back.
    """

    def __init__(self, exchange: float = 0.0, graded: Container[str] = ()) -> None:
        self.exchange, self.graded = exchange, graded

    def fetching(self, tensor: RowTensor, need: Array, computed: Array) -> Array:
        """Words of the rows that ranks need and do not compute, of the rank that receives most."""
        words = by_choice(fetched_words(need, computed), tensor) * (1 + (tensor.name in self.graded))
        return words + self.exchange * (words > 0) if self.exchange else words

    def computing(self, tensor: RowTensor, computed: Array) -> Array:
        """0 for each choice."""
        return np.zeros(computed.shape[2] // tensor.own.shape[2])


class SecondPrices:
    """Seconds on a machine, by the formulas of the layers: see `step_time.layer_times`.

    passes: layer -> its passes, in training. graded: as for `WordPrices`.
    """

    def __init__(
        self,
        network: Network,
        machine: Machine,
        passes: Mapping[str, Passes] | None = None,
        graded: Container[str] = (),
    ) -> None:
        self.network, self.machine, self.passes, self.graded = network, machine, passes, graded
        layer = network.planned[0].layer
        assert layer is not None
        self.word_bytes = layer.nest.word_bytes
        self._groups: dict[PlacedGrid, dict[tuple[Axis, ...], Group]] = {}

    def call(self, procs: int) -> float:
        """Seconds that a rank takes to start an exchange, where some ranks compute."""
        crowded: float = self.machine.crowded(float(procs))
        return self.machine.compute.exchange * crowded

    def fetching(self, tensor: RowTensor, need: Array, computed: Array) -> Array:
        """Seconds of one exchange: its start, latencies, and the words of the rank that receives most.

        Gradients that return take as long.
        """
        words = by_choice(fetched_words(need, computed), tensor)
        grid = tensor.placed.grid
        cut = [axis for axis in X_AXES if getattr(grid, axis) > 1]
        counts = [_senders(FLAT.index(axis), tensor, need, computed).tolist() for axis in cut]
        call = self.call(grid.size)
        return (1 + (tensor.name in self.graded)) * np.array(
            [
                self._exchange(tensor, most * self.word_bytes, dict(zip(cut, senders, strict=True))) + call
                if most
                else 0.0
                for most, *senders in zip(words.tolist(), *counts, strict=True)
            ]
        )

    def _exchange(self, tensor: RowTensor, size: int, senders: dict[Axis, int]) -> float:
        """senders: along each axis that is cut, from how many ranks one receives."""
        axes = tuple(axis for axis, count in senders.items() if count) or X_AXES
        if axes not in self._groups.setdefault(tensor.placed, {}):
            made = group_of(self.machine, tensor.placed.grid, tensor.placed.order, axes)
            self._groups[tensor.placed][axes] = made
        count = max(1, sum(senders.values()))
        return exchange_seconds(self.machine, size, self._groups[tensor.placed][axes], count)

    def computing(self, tensor: RowTensor, computed: Array) -> Array:
        """Seconds beyond those of the own rows, of the rank that computes longest; of all passes."""
        forward, backward = self.computed(tensor, computed)
        return forward + backward

    def computed(self, tensor: RowTensor, computed: Array) -> tuple[Array, Array]:
        """The same of the forward pass, and of the backward passes."""
        node = self.network.nodes.get(tensor.name)
        nothing = np.zeros(computed.shape[2] // tensor.own.shape[2])
        if node is None or self.network.parts[node.name][0].node is None:
            return nothing, nothing  # what follows the input has no price
        own, more = (self._seconds(node, tensor, boxes) for boxes in (tensor.own, computed))
        forward, backward = (np.maximum(0.0, one - other) for one, other in zip(more, own, strict=True))
        return forward, backward

    def _seconds(self, node: Node, tensor: RowTensor, boxes: Array) -> tuple[Array, Array]:
        """By choice, forward and backward."""
        compute = self.machine.compute
        if node.layer is None:
            size = sizes(boxes) * float(self.word_bytes)
            rate = compute.bandwidth or compute.rate
            touched = accesses(node, inference=self.passes is None)
            each = [n * size / rate + compute.new(size) * (n > 0) for n in touched]
            found = each if self.passes is not None else [each[0], np.zeros_like(each[0])]
        else:
            nest = node.layer.nest
            lengths = (boxes[:, 1] - boxes[:, 0]).astype(np.float64)
            parts = {
                axis: lengths[FLAT.index(axis)] * getattr(nest.extents, axis) / tensor.shape[FLAT.index(axis)]
                for axis in X_AXES
            }
            work = nest.extents._replace(**parts)
            first: Pass = "backward-data" if node.layer.transposed else "forward"
            found = [
                sum(
                    (compute_seconds(self.machine, nest, work, node.weighted, each) for each in some),
                    0.0 * lengths[0],
                )
                for some in ((first,), (self.passes or {}).get(node.name, ())[1:])
            ]
            if not node.weighted:
                found[0] = found[0] + compute.tap * nest.taps * math.prod(work)
        crowded = float(self.machine.crowded(float(tensor.placed.grid.size)))
        forward, backward = (crowded * by_choice(each, tensor) for each in found)
        return forward, backward


Prices = WordPrices | SecondPrices


def _senders(at: int, tensor: RowTensor, need: Array, computed: Array) -> Array:
    """By choice: the most ranks along a dimension from which a rank receives rows."""
    own = np.tile(tensor.own, need.shape[2] // tensor.own.shape[2])
    used = (sizes(own) > 0) & (sizes(need) > 0)
    (low, high), (first, last), (start, end) = (np.where(used, each[at], 0) for each in (own, need, computed))
    block = max(1, int((high - low).max()))
    found: Array = np.zeros(need.shape[2] // tensor.own.shape[2], np.int64)
    for wanted, made in ((low - first, low - start), (last - high, end - high)):
        most, known = by_choice(wanted, tensor), np.maximum(0, by_choice(made, tensor))
        found += np.where(most > known, np.maximum(1, -(-most // block) - known // block), 0)
    return found
