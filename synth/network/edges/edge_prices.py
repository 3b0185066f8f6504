"""Prices of redistributions between placed grids; a pair of grids is priced once for all tables of options.

The planner solves several choices among overlapping options: one per single strategy, and its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from synth.layer.axes import Tensor
from synth.machine.rank_groups import split_over
from synth.network.edges.redistribution import EdgeEnd, redistribution_words, single_positions
from synth.network.graph import Edge, Network
from synth.network.grids.box_rows import FLAT, Array, BoxRows
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import GridDistributions, PlacedGrid, row_numbers, sampled_ranks
from synth.network.grids.row_bank import RowBank
from synth.network.request import NetworkRequest
from synth.network.solve import Table

PricedEdges = dict[Edge, tuple[Array, Table]]  # edge -> (words, cost) by (source option, target option)
UNKNOWN = -1
HELD_BYTES = 32 << 20  # of boxes that are held: those of a layer class take some MB at 4096 ranks


class GrowingBoxes:
    """Boxes of placed grids of one nest. Grids are numbered as they come; `rows` is by these numbers."""

    def __init__(self, distributions: GridDistributions, bank: RowBank, procs: int) -> None:
        self.nest, self.bank, self.procs = distributions.nest, bank, procs
        self.distributions = distributions
        self._number: dict[PlacedGrid, int] = {}
        self._numbers: dict[Tensor, Array] = {}  # of the rows of all grids so far
        self._rows: dict[Tensor, BoxRows] = {}

    def __len__(self) -> int:
        return len(self._number)

    def add(self, placed: Sequence[PlacedGrid]) -> Array:
        """The numbers of some grids, among them new ones. What a rank owns does not depend on turned axes."""
        number = self._number
        plain = (PlacedGrid(each.grid, each.order) if each.turned else each for each in placed)
        return np.array([number.setdefault(each, len(number)) for each in plain], np.intp)

    def rows(self, tensor: Tensor) -> BoxRows:
        """The boxes of a tensor, of all grids so far."""
        known = self._numbers.get(tensor, np.empty((0, len(FLAT)), np.intp))
        if len(known) < len(self):
            self._rows.pop(tensor, None)
            placed = list(self._number)[len(known) :]
            owners = [self.distributions[each.grid] for each in placed]
            new = row_numbers(self.bank, self.nest, tensor, placed, owners)
            self._numbers[tensor] = known = np.concatenate([known, new])
        if tensor not in self._rows:
            self._rows[tensor] = self.bank.boxes(known)
        return self._rows[tensor]

    @property
    def held_bytes(self) -> int:
        """Bytes of the boxes in memory, with the words of every rank and option."""
        bounds = [each for rows in self._rows.values() for each in (*rows.low, *rows.high)]
        words = sum(len(rows.row[0]) * rows.low[0].shape[1] * 4 for rows in self._rows.values())
        return int(words + sum(each.nbytes for each in bounds))

    def forget(self) -> None:
        """Give the memory of the boxes back. They are made again where they are asked for."""
        self._rows.clear()


class EdgePrices:
    """The prices of the edges of a network. Equal edges are priced once.

    distributions: of the grids of every class, if others use them as well. ranks: count words on some ranks
    alone, as lower bounds; edges with reindexings or reductions then count nothing.
    """

    def __init__(
        self,
        network: Network,
        request: NetworkRequest,
        classes: Sequence[LayerClass],
        class_of: Sequence[int],
        distributions: Sequence[GridDistributions] | None = None,
        ranks: Array | None = None,
    ) -> None:
        self.network, self.request, self.classes = network, request, classes
        self._few = ranks is not None
        self.class_of = {node.name: k for node, k in zip(network.planned, class_of, strict=True)}
        self._bank = RowBank(sampled_ranks(request.procs) if ranks is None else ranks)
        shared = distributions or [GridDistributions(each.nest) for each in classes]
        self._boxes = [GrowingBoxes(each, self._bank, request.procs) for each in shared]
        self._held: dict[int, None] = {}  # classes whose boxes are in memory, the last asked for last
        self._words: dict[tuple[object, ...], Array] = {}  # kind of edge -> words by the numbers of two grids

    def count(self, tables: Iterable[Sequence[Sequence[PlacedGrid]]]) -> None:
        """Count the words of all pairs among the options of several tables, before `of` asks for each."""
        together = [dict[PlacedGrid, None]() for _ in self.classes]
        for table in tables:
            for placed, row in zip(together, table, strict=True):
                placed.update(dict.fromkeys(row))
        self.of(list(map(list, together)))

    def of(self, table: Sequence[Sequence[PlacedGrid]]) -> PricedEdges:
        """Words and cost of every edge for some options. table: class -> the placed grids of its options."""
        numbers = [boxes.add(row) for boxes, row in zip(self._boxes, table, strict=True)]
        found: dict[tuple[object, ...], tuple[Array, Table]] = {}
        for edge, kind in self._kinds.items():
            if kind not in found:
                source, target = self.class_of[edge.source], self.class_of[edge.target]
                known = self._table(kind, len(self._boxes[source]), len(self._boxes[target]))
                self._complete(edge, known, (source, target), numbers)
                words = known[np.ix_(numbers[source], numbers[target])]
                back = self.request.sends_gradient_back(edge)
                found[kind] = words, self.price(words, self.classes[target].nest.word_bytes, back)
        return {edge: found[kind] for edge, kind in self._kinds.items()}

    @cached_property
    def _kinds(self) -> dict[Edge, tuple[object, ...]]:
        """Edge -> all that its words follow from, beside the options."""
        return {
            edge: (
                self.class_of[edge.source],
                self.class_of[edge.target],
                edge.role,
                edge.channels,
                single_positions(self.network, edge),
                self.request.sends_gradient_back(edge),
                edge.source_path,
                edge.target_path,
                edge.moves_rows,
            )
            for edge in self.network.edges
        }

    def _table(self, kind: tuple[object, ...], sources: int, targets: int) -> Array:
        """The known words of a kind of edges, with room for some numbers of grids."""
        known = self._words.get(kind, np.empty((0, 0), np.int64))
        rows, columns = known.shape
        if rows < sources or columns < targets:
            grown = np.full((sources, targets), UNKNOWN, np.int64)
            grown[:rows, :columns] = known
            self._words[kind] = known = grown
        return known

    def _complete(self, edge: Edge, known: Array, ends: tuple[int, int], numbers: Sequence[Array]) -> None:
        """Add the words of the pairs of options that are not known yet."""
        source, target = ends
        missing = known[np.ix_(numbers[source], numbers[target])] == UNKNOWN
        rows, columns = (np.flatnonzero(missing.any(axis=axis)) for axis in (1, 0))
        if not len(rows):
            return
        rows, columns = numbers[source][rows], numbers[target][rows if edge.moves_rows else columns]
        before = EdgeEnd(self.classes[source], self._boxes[source], rows)
        after = EdgeEnd(self.classes[target], self._boxes[target], columns)
        if self._few and (edge.source_path or edge.target_path):
            known[np.ix_(rows, columns)] = 0
            return
        back, single = self.request.sends_gradient_back(edge), single_positions(self.network, edge)
        words = redistribution_words(edge, before, after, single=single, back=back)
        known[np.ix_(rows, columns)] = words
        self._hold(ends)

    def _hold(self, ends: tuple[int, int]) -> None:
        """Hold the boxes of these classes, and of those that were asked for last."""
        for end in ends:
            self._held.pop(end, None)
            self._held[end] = None
        while len(self._held) > 2 and sum(self._boxes[each].held_bytes for each in self._held) > HELD_BYTES:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self._boxes[oldest].forget()

    def price(self, words: Array, word_bytes: int, back: bool) -> Table:
        """The cost of redistributions that move some words: these words, or seconds.

        Seconds are those of one exchange of all ranks on the outermost level that P ranks span, and of a
        second exchange if the gradient goes `back`.
        """
        if self.request.objective == "words":
            return words.astype(np.float64)
        machine = self.request.machine
        assert machine is not None
        group = split_over(machine, self.request.procs)
        if not group.units():
            return np.zeros(words.shape)
        index, _ = group.units()[-1]
        level, flows = machine.levels[index], group.shared(index)
        per_byte = level.message(1.0, flows) - level.message(0.0, flows)
        seconds = level.exchange(0.0) * (1 + back) + words * word_bytes * per_byte
        return np.where(words > 0, seconds, 0.0)
