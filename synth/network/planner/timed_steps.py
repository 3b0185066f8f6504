"""The seconds of a step, and the places of weights, for the options of the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from synth.base.array_kinds import kinds_of
from synth.layer.axes import LACKS, PerAxis
from synth.layer.nest import Nest
from synth.network.edges.redistribution import single_positions
from synth.network.forest import LazyTable, least_sum
from synth.network.graph import Edge, Network
from synth.network.grids.box_rows import Array
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import PlacedGrid, slice_words
from synth.network.planner.candidates import GridCandidates
from synth.network.request import NetworkRequest
from synth.network.solve import Pairs, Progress, Solution, Table
from synth.network.step_time.between import Between, between
from synth.network.step_time.choice import Sizes, TimedStep, box_sizes, cheapest, least_moved, timed
from synth.network.step_time.layer_times import LayerTimes, Seconds
from synth.network.step_time.step import LayerSeconds, StepSeconds, least_seconds

Price = Callable[[Seconds, int, bool], Table]
NEAR_BOUND = 1.02  # a bound of the layers alone that is so near the plan is taken as it is
Options = Sequence[Sequence[PlacedGrid]]  # layer class -> the placed grids of its options


def followed_by(network: Network, request: NetworkRequest) -> list[Between]:
    """Layer -> what lies between it and the next planned layers; nothing where words are counted."""
    if request.machine is None or request.objective == "words":
        return [Between()] * len(network.planned)
    found = between(network, request.procs, request.machine, request.resident_weights)
    return [found[node.name] for node in network.planned]


class TimedSteps:
    """The seconds of steps of one network.

    classes: layer -> its class. followed: layer -> what follows it. candidates: of the classes. class_of:
    layer -> the position of its class.
    """

    def __init__(
        self,
        request: NetworkRequest,
        classes: Sequence[LayerClass],
        followed: Sequence[Between],
        candidates: Sequence[GridCandidates],
        class_of: Sequence[int],
    ) -> None:
        self.request, self.classes, self.followed = request, classes, followed
        self.candidates, self.class_of = candidates, class_of

    def step(self, options: Options) -> StepSeconds:
        """The seconds of a step by the options of all layers."""
        machine = self.request.machine
        assert machine is not None
        rows = []
        for each, row in zip(self.candidates, options, strict=True):
            assert each.timed is not None
            rows.append(each.timed.rows(row))
        training, hides = self.request.training, self.request.hides
        by_layer = [rows[k] for k in self.class_of]
        margin = self.request.margin
        return StepSeconds(machine, by_layer, self.followed, self._may(), training, hides, margin)

    def cheapest(
        self, options: Options, moved: Sequence[Table], pairs: Pairs, method: str, progress: Progress
    ) -> Solution:
        """The choice with the fewest seconds. moved, pairs: of the redistributions."""
        allowed = partial(self._may_be_whole, options)
        return cheapest(self.step(options), moved, pairs, allowed, method, progress)

    def timed(self, options: Options, chosen: Sequence[int]) -> TimedStep | None:
        """The seconds of a choice by layer; None where words are counted."""
        if self.request.objective == "words":
            return None
        return timed(self.step(options), chosen, partial(self._may_be_whole, options))

    def with_margins(
        self, placed_grids: Sequence[PlacedGrid], covered: Container[int], whole: Sequence[bool]
    ) -> list[LayerSeconds]:
        """Layer -> its seconds on a grid, where some layers need not exchange rows.

        covered: these layers, by place. whole: of the others, which hold whole weights. In training every
        rank has the whole weights of a covered layer. Buckets sum their gradients where weights may be whole;
        else sums return to their owners, and nothing hides that.
        """
        machine, rows, may = self.request.machine, self._times(placed_grids), self._may()
        assert machine is not None
        calls = [machine.compute.exchange * float(machine.crowded(float(p.grid.size))) for p in placed_grids]
        given = [
            each.with_margins(np.array([call]), may[i]) if i in covered else each
            for i, (each, call) in enumerate(zip(rows, calls, strict=True))
        ]
        hides, training = self.request.hides, self.request.training
        step = StepSeconds(machine, given, self.followed, may, training, hides)
        keeps = self.whole_with_margins(covered, whole)
        found = step.by_layer([0] * len(rows), keeps)
        for i, (each, call) in enumerate(zip(rows, calls, strict=True)):
            sums = float(each.gathered[0] + each.reduced[0])
            if training and i in covered and not may[i] and sums:
                found[i] = replace(found[i], exchange=found[i].exchange + sums + 2 * call)
        return found

    def whole_with_margins(self, covered: Container[int], whole: Sequence[bool]) -> tuple[bool, ...]:
        """Layer -> whether buckets sum the gradients of its weights. The arguments are as above."""
        pairs = zip(whole, self._may(), strict=True)
        return tuple(may if i in covered else each for i, (each, may) in enumerate(pairs))

    def _times(self, placed_grids: Sequence[PlacedGrid]) -> list[LayerTimes]:
        rows = list[LayerTimes]()
        for k, placed in zip(self.class_of, placed_grids, strict=True):
            timed = self.candidates[k].timed
            assert timed is not None
            rows.append(timed.rows([placed]))
        return rows

    def least(self, network: Network, price: Price, cost: float) -> float:
        """A lower bound of the seconds of every plan of the family.

        price: the seconds of redistributions, from (words, bytes of a word, whether gradients return).
        cost: of a known plan. What redistributions move at least counts along a forest of edges, over the
        grids that a faster plan may have.
        """
        assert self.request.machine is not None
        layers = []
        for layer_class, followed, may in zip(self.class_of, self.followed, self._may(), strict=True):
            grids = self.candidates[layer_class].timed
            assert grids is not None
            layers.append((grids.times, followed, may))
        training, hides = self.request.training, self.request.hides
        least, rows = least_seconds(self.request.machine, layers, training, hides)
        if least * NEAR_BOUND >= cost:
            return least
        sizes = [self._box_sizes(k) for k in range(len(self.candidates))]
        costs, ends = list[Seconds](), list[Sizes]()
        for k, row in zip(self.class_of, rows, strict=True):
            some = np.flatnonzero(row <= row.min() + (cost - least) * (1 + 1e-9))
            first, kind = kinds_of(sizes[k][some].T)
            seconds = np.full(len(first), np.inf)
            np.minimum.at(seconds, kind, row[some])
            costs.append(seconds)
            ends.append(sizes[k][some[first]])
        half = sizes[0].shape[1] // 2
        edges: dict[tuple[int, int], LazyTable] = {}
        position = {node.name: i for i, node in enumerate(network.planned)}
        for edge in network.edges:
            source, target = position[edge.source], position[edge.target]
            one, other = self.classes[source], self.classes[target]
            if source != target and plain_edge(network, edge, one, other):
                back = self.request.sends_gradient_back(edge)
                have, want = ends[source][:, half:], ends[target][:, :half]
                edges[source, target] = _least_price(price, (have, want), (one.nest, other.nest), back)
        return max(least, min(cost, least_sum(costs, edges)))

    def _box_sizes(self, layer_class: int) -> Sizes:
        """By placed grid of a class: the sizes of its boxes of In, then of Out; see `box_sizes`."""
        timed = self.candidates[layer_class].timed
        assert timed is not None
        grids, nest = [placed.grid for placed in timed.placed], self.candidates[layer_class].nest
        return np.concatenate([box_sizes(nest, grids, "In"), box_sizes(nest, grids, "Out")], axis=1)

    # -- whole weights --------------------------------------------------------------------------------------

    def _may(self) -> list[bool]:
        return [self.request.may_hold_whole(kind.weighted) for kind in self.classes]

    def _may_be_whole(self, options: Options, chosen: Sequence[int]) -> list[bool]:
        """Which layers may hold whole weights: those that the machine's memory has room for, smallest first.

        What is left of it holds shards of everything, and the slices of one layer.
        """
        machine = self.request.machine
        grids = [options[k][option].grid for k, option in zip(self.class_of, chosen, strict=True)]
        may = [each and grid.of(LACKS["Ker"]) > 1 for each, grid in zip(self._may(), grids, strict=True)]
        if machine is None or machine.limit_bytes is None or not any(may):
            return may
        layers = [(kind.nest, grid) for kind, grid in zip(self.classes, grids, strict=True)]
        held = sum(2 * sum(nest.words.values()) // self.request.procs for nest, _ in layers)
        room = machine.limit_bytes // layers[0][0].word_bytes - held - max(_slices(*each) for each in layers)
        more = [2 * slice_words(*each) for each in layers]
        for layer in sorted(range(len(may)), key=more.__getitem__):
            room -= more[layer] if may[layer] else 0
            may[layer] &= room >= 0
        return may

    def words_of_whole(self, grids: Sequence[PlacedGrid], step: TimedStep | None) -> int:
        """Words of whole weights and of their gradients beyond those of the shards."""
        if step is None:
            return 0
        rows = zip(self.classes, grids, step.whole, strict=True)
        some = [(kind.nest, placed.grid) for kind, placed, whole in rows if whole]
        procs = self.request.procs
        return sum(2 * (slice_words(nest, grid) - nest.words["Ker"] // procs) for nest, grid in some)


def _least_price(price: Price, sizes: tuple[Sizes, Sizes], nests: tuple[Nest, Nest], back: bool) -> LazyTable:
    """The seconds that a redistribution takes at least, by the sizes of boxes of its source and target."""
    (have, want), (source, target) = sizes, nests

    def at(some: Array, others: Array) -> Seconds:
        words = least_moved(have[some], want[others], source.words["Out"], back)
        return price(words * (1 - 1e-9), target.word_bytes, back)

    return LazyTable((len(have), len(want)), at)


def plain_edge(network: Network, edge: Edge, source: LayerClass, target: LayerClass) -> bool:
    """Whether an edge carries the whole output of a layer to the input of another, row by row."""
    if edge.role != "in" or edge.channels or edge.source_path or edge.target_path or edge.moves_rows:
        return False
    if source.transposed or target.transposed or any(single_positions(network, edge)):
        return False
    whole = all(window.reads_all for window in target.nest.windows.values())
    (b, g, c, *rows), (b2, g2, k, *rows2) = target.nest.shapes["In"], source.nest.shapes["Out"]
    return whole and (b, g * c, rows) == (b2, g2 * k, rows2)


def _slices(nest: Nest, grid: PerAxis) -> int:
    """Words of the slices of a layer, without halos."""
    parts = {"In": (grid.x, grid.g, grid.c), "Ker": (grid.g, grid.c, grid.k), "Out": (grid.x, grid.g, grid.k)}
    words = nest.words
    return sum(words[tensor] // math.prod(parts[tensor]) for tensor in words)
