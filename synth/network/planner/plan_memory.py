"""Which options of the layers fit a memory limit, and what every rank holds throughout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from synth.base.doors import option
from synth.base.errors import InfeasibleError
from synth.layer.axes import Axis, PerAxis
from synth.network.graph import Node
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import PlacedGrid, slice_words
from synth.network.planner.options import LayerOption
from synth.network.planner.resident_weights import (
    WeightChoice,
    cheapest_fitting,
    choose_resident_tiling,
)
from synth.network.request import NetworkRequest
from synth.network.solve import Pairs, Solution, Table
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.search.pass_tilings import choose_tiling
from synth.search.request import STATIONARY
from synth.search.tiling_search import TilingChoice
from synth.search.training_step import choose_tilings_reusing

Options = Sequence[Sequence[LayerOption]]  # layer class -> its options


class PlanMemory:
    """The memory of a network plan while its grids are chosen.

    resident_words: that a rank holds throughout, at most: weights; in training also gradients and inputs of
    all layers. Resident weights depend on the grids: until these are chosen, it has the fewest words.
    """

    def __init__(
        self, nodes: Sequence[Node], node_classes: Sequence[LayerClass], request: NetworkRequest
    ) -> None:
        self.nodes, self.node_classes, self.request = nodes, node_classes, request
        self.resident_words = 0 if request.resident_weights else self._shards()
        self._tilings: dict[tuple[object, ...], TilingChoice | None] = {}
        self._least: dict[tuple[LayerClass, PerAxis, tuple[Axis, ...]], int] = {}

    def within(self, limit_bytes: int | None) -> PlanMemory:
        """The memory of the same layers under another limit. What is known of their pass plans is shared."""
        other = copy(self)
        other.request = replace(self.request, limit_bytes=limit_bytes)
        return other

    def _shards(self) -> int:
        total = 0
        for node, layer_class in zip(self.nodes, self.node_classes, strict=True):
            nest, procs = layer_class.nest, self.request.procs
            if node.weighted:
                total += -(-nest.words["Ker"] // procs) * (2 if self.request.training else 1)
            if self.request.training:
                total += -(-nest.words[layer_class.input_tensor] // procs)
        return total

    def place(self, grids: Iterable[PlacedGrid]) -> None:
        """Count the weights as these grids of all layers place them."""
        self.resident_words = self.resident_of(grids)

    def resident_of(self, grids: Iterable[PlacedGrid]) -> int:
        """Words that a rank holds throughout, at most, with these grids of all layers."""
        if not self.request.resident_weights:
            return self.resident_words
        pairs = zip(self.nodes, self.node_classes, grids, strict=True)
        return sum(_weights(node, kind, placed) for node, kind, placed in pairs)

    def least_bytes(self, grids: Sequence[PlacedGrid]) -> int:
        """The least limit that all layers fit on these grids."""
        working = max(map(self._least_words, self.node_classes, grids))
        return (self.resident_of(grids) + working) * self.node_classes[0].nest.word_bytes

    # -- options ----------------------------------------------------------------------------------------

    def fitting(self, classes: Sequence[LayerClass], table: Options) -> list[list[LayerOption]] | None:
        """The options that fit the memory limit; None if a layer has none."""
        if self.request.limit_bytes is None:
            return [list(row) for row in table]
        self._place_fewest(classes, table)
        result = []
        for layer_class, row in zip(classes, table, strict=True):
            fitting = [option for option in row if self._fits(layer_class, option.placed)]
            if not fitting:
                return None
            result.append([self._with_reloads(layer_class, option) for option in fitting])
        return result

    def _with_reloads(self, layer_class: LayerClass, option: LayerOption) -> LayerOption:
        again = self.reloaded_words(layer_class, option.placed)
        return replace(option, cost=option.cost + again) if again else option

    def reloaded_words(self, layer_class: LayerClass, placed: PlacedGrid) -> int:
        """Words that the limit makes a rank receive again: slices that it cannot hold from tile to tile.

        Seconds of layers do not contain these: 0 where time is planned.
        """
        limit_words = self._limit_words(layer_class)
        if limit_words is None or self.request.objective != "words":
            return 0
        ample = self.within(None).tiling(layer_class, placed)
        if ample is None or ample.used_words <= limit_words:
            return 0
        found = self.tiling(layer_class, placed)
        return 0 if found is None else max(0, found.words - ample.words)

    def require_fitting(self, classes: Sequence[LayerClass], table: Options) -> list[list[LayerOption]]:
        """The options that fit; raises `InfeasibleError` if a layer has none."""
        found = self.fitting(classes, table)
        if found is None:
            raise self._too_small(classes, [[option.placed for option in row] for row in table])
        return found

    def _place_fewest(self, classes: Sequence[LayerClass], table: Options) -> None:
        fewest = {}
        for layer_class, row in zip(classes, table, strict=True):
            words = {option.placed: slice_words(layer_class.nest, option.placed.grid) for option in row}
            fewest[layer_class] = min(words, key=words.__getitem__)
        self.place(fewest[layer_class] for layer_class in self.node_classes)

    def _limit_words(self, layer_class: LayerClass) -> int | None:
        """What is left for the working memory of a layer."""
        if self.request.limit_bytes is None:
            return None
        return self.request.limit_bytes // layer_class.nest.word_bytes - self.resident_words

    def _fits(self, layer_class: LayerClass, placed: PlacedGrid) -> bool:
        """Whether any pass plans of a layer on a grid fit the memory limit."""
        limit_words = self._limit_words(layer_class)
        return limit_words is None or self._least_words(layer_class, placed) <= limit_words

    def _least_words(self, layer_class: LayerClass, placed: PlacedGrid) -> int:
        """The least working memory of any pass plans of a layer on a grid; cached."""
        key = layer_class, placed.grid, placed.turned
        if key not in self._least:
            self._least[key] = self._choose_tiling(layer_class, placed, 0)[1]
        return self._least[key]

    def tiling(self, layer_class: LayerClass, placed: PlacedGrid, whole: bool = False) -> TilingChoice | None:
        """The pass plans of a layer on a grid within the memory limit; cached.

        whole: in training, whether ranks hold whole slices of Ker.
        """
        limit_words = self._limit_words(layer_class)
        key = (layer_class, placed.grid, placed.turned, limit_words, whole)
        if key not in self._tilings:
            self._tilings[key] = self._choose_tiling(layer_class, placed, limit_words, whole)[0]
        return self._tilings[key]

    def _choose_tiling(
        self, layer_class: LayerClass, placed: PlacedGrid, limit_words: int | None, whole: bool = False
    ) -> tuple[TilingChoice | None, int]:
        """The pass plans that fit a limit, and the least words that any pass plans need."""
        nest, resident = layer_class.nest.turn(placed.turned), self.request.resident_of(whole)
        distribution = Distribution(nest, placed.grid, resident=resident, ghosts=False)
        forward = PassPlan(pass_="backward-data") if layer_class.transposed else PassPlan()
        if self.request.resident_weights:
            return choose_resident_tiling(distribution, limit_words, forward)
        if self.request.training and layer_class.weighted:
            return choose_tilings_reusing(
                distribution,
                STATIONARY,
                limit_words,
                self.request.saves,
                layer_class.transposed,
                layer_class.gradients,
            )
        return choose_tiling(distribution, STATIONARY, limit_words, forward)

    def _too_small(
        self, classes: Sequence[LayerClass], table: Sequence[Sequence[PlacedGrid]]
    ) -> InfeasibleError:
        """The error that names the layer that needs most, and the memory that would be enough."""
        needs = [
            min(self._least_words(layer_class, placed) for placed in row)
            for layer_class, row in zip(classes, table, strict=True)
        ]
        most = max(range(len(needs)), key=needs.__getitem__)
        node, word_bytes = self.nodes[self.node_classes.index(classes[most])], classes[most].nest.word_bytes
        need, resident = (needs[most] + self.resident_words) * word_bytes, self.resident_words * word_bytes
        return InfeasibleError(
            f"{node.name}: no option fits {self.request.limit_bytes} bytes per process next to the "
            f"{resident} bytes that are always resident; {option('memory', need)} would do",
            enough_bytes=need,
        )

    # -- resident weights ---------------------------------------------------------------------------------

    def cheapest_fitting(
        self,
        placed: Sequence[Sequence[PlacedGrid]],
        costs: Sequence[Table],
        pairs: Pairs,
        method: str,
    ) -> Solution:
        """The cheapest choice found whose weights fit beside every layer's working memory.

        placed: the options of every node. Raises `InfeasibleError` if the weights of no choice do.
        """
        limit_bytes = self.request.limit_bytes
        assert limit_bytes is not None

        def grids(chosen: Sequence[int]) -> list[PlacedGrid]:
            return [row[option] for row, option in zip(placed, chosen, strict=True)]

        def fits(chosen: Sequence[int]) -> bool:
            self.place(grids(chosen))
            pairs = zip(self.node_classes, grids(chosen), strict=True)
            return all(self._fits(layer_class, each) for layer_class, each in pairs)

        slices = [
            np.array([_weights(node, layer_class, each) for each in row], np.float64)
            for node, layer_class, row in zip(self.nodes, self.node_classes, placed, strict=True)
        ]
        working = max(
            min(self._least_words(layer_class, each) for each in row)
            for layer_class, row in zip(self.node_classes, placed, strict=True)
        )
        room = limit_bytes // self.node_classes[0].nest.word_bytes - working
        found, fewest = cheapest_fitting(WeightChoice(costs, pairs, slices, room, fits), method)
        if found is None:
            self.place(grids(fewest.chosen))
            raise self._too_small(self.node_classes, [[each] for each in grids(fewest.chosen)])
        return found


def _weights(node: Node, layer_class: LayerClass, placed: PlacedGrid) -> int:
    """Words of the slice of Ker that a rank holds of a layer; none of one that has the weights of another."""
    own = node.weighted and not node.tied
    return slice_words(layer_class.nest, placed.grid) if own else 0
