"""Seconds of one layer on a machine: computing, and the communication that does not overlap with it.

The words of a placed grid depend on neither the stationary tensor nor the number of panels, but the time
does. The stationary tensor and the halo are communicated before or after the loop. The other two tensors
are streamed in n panels, one collective per panel, while the previous panel is used:

    time = exposed + (C + S)/n + max(C, S)·(n-1)/n        C computation, S streaming

`machine.overlap` is the fraction of the overlap that the machine achieves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from synth.layer.axes import LACKED_INDEX, LACKS, TENSORS, Axis, Order, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import PASSES, Pass, Passes, reuse_intervals
from synth.machine.collectives import Cost, Group, Op, exchange_seconds
from synth.machine.hierarchy import Machine
from synth.machine.many_groups import costs_on
from synth.machine.rank_groups import group_of
from synth.schedule.memory import Footprints
from synth.schedule.panel_rotation import rotated_at
from synth.schedule.pass_plan import ONES, THINNEST, PassPlan, Structure
from synth.schedule.pass_program import Gather, Groups, PassProgram, Reduce, Rows, lowered, pass_program

OPS: dict[type[Gather] | type[Reduce], Op] = {Gather: "all_gather", Reduce: "reduce_scatter"}
PANELS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class PassTime:
    """Seconds of one pass. `comm` is all communication, `exposed` the part that does not overlap."""

    pass_: Pass
    stationary: Tensor
    panels: int
    compute: float
    comm: float
    exposed: float
    parts: tuple[tuple[str, str, float], ...] = ()  # (tensor, algorithm, seconds)

    @property
    def total(self) -> float:
        """Seconds of the pass."""
        return self.compute + self.exposed


class Candidate(NamedTuple):
    """A stationary tensor and a number of panels for a pass, with the moves of its schedule tree."""

    pass_: Pass
    stationary: Tensor
    panels: int
    rows: tuple[Rows, ...]
    moves: tuple[Gather | Reduce, ...]
    rotation: tuple[Tensor, ...]

    def pieces(self, node: Gather | Reduce) -> int:
        """The number of collectives of a move: one per panel, or one."""
        return self.panels if node.scope == "panel" else 1


@lru_cache(maxsize=1 << 14)
def walked(
    plan: Structure, groups: Groups, row_axes: tuple[Axis, ...], turned: tuple[Axis, ...]
) -> tuple[tuple[Rows, ...], tuple[Gather | Reduce, ...]]:
    """The moves of a plan's schedule tree: (halo exchanges, gathers and reductions ordered by tensor)."""
    tree = lowered(plan, groups, row_axes, turned=turned)
    moves = sorted(tree.collectives(), key=lambda node: TENSORS.index(node.tensor))
    return (*tree.fetches, *tree.returns), tuple(moves)


def compute_seconds(machine: Machine, nest: Nest, work: Any, weighted: bool, pass_: Pass = "forward") -> Any:
    """Compute seconds of the most loaded rank in one pass: 2 operations per multiply-add; see `Compute`.

    work: the block of the rank, a `PerAxis` of numbers, or of arrays for many ranks.
    A layer without weights (pooling) is bound by memory: it reads its input and writes its output once.
    """
    compute, size = machine.compute, math.prod(work)
    if weighted:
        rate = compute.rate_of(work.c + (work.k - work.c) * (work.k < work.c), nest.dtype)
        read, written = (size / each * nest.word_bytes for each in (work.k, work.c))
        weights = work.g * work.c * work.k * (nest.taps * nest.word_bytes)
        moving = compute.moving(read * nest.strides, weights, written, pass_)
        return compute.overhead + 2 * size * nest.taps / rate + moving
    touched = size * (nest.strides + 1) * nest.word_bytes
    return compute.overhead + touched / (compute.bandwidth or compute.rate)


def travels(nest: Nest, weighted: bool, tensor: Tensor) -> bool:
    """Whether a tensor is communicated. A pooling has no Ker and, for each channel, no reductions."""
    return weighted or not (tensor == "Ker" or (tensor == "Out" and nest.extents.c == 1))


class LayerTimer:
    """Computes the times of one placed grid of a layer.

    `footprints`: of the grid, for any placement. `order`: the order of the grid axes over the ranks.
    `saved`: the tensors that passes save and reuse; by default only dOut, the convention of the oracle.
    `sequence`: the passes in order of execution. In a training step, the last reduction of the second pass
    overlaps with the third. By default no communication of one pass overlaps with another.
    `steps`: the passes of a training step if there is no `sequence`; the first one is forward.
    """

    def __init__(
        self,
        machine: Machine,
        footprints: Footprints,
        order: Order,
        weighted: bool = True,
        saved: frozenset[Tensor] | None = None,
        sequence: Passes = (),
        steps: Passes | None = None,
    ) -> None:
        self.sequence = sequence
        self.steps = steps or (PASSES if weighted else PASSES[:2])  # a pooling has no backward-filter
        self.saved = saved or frozenset()
        saved = frozenset({"Out"}) if saved is None else saved
        intervals = reuse_intervals(sequence) or reuse_intervals(self.steps)
        lives = {tensor: ends for tensor, ends in intervals.items() if tensor in saved}
        self.saved_by = {p: frozenset(t for t, (first, _) in lives.items() if first == p) for p in PASSES}
        self.reused_by = {p: frozenset(t for t, (_, last) in lives.items() if last == p) for p in PASSES}
        self.machine, self.footprints, self.order, self.weighted = machine, footprints, order, weighted
        self.nest, self.grid, self.work = footprints.nest, footprints.grid, footprints.work
        self._computing: dict[Pass, float] = {}
        self._exchanges: dict[Rows, float] = {}

    @cached_property
    def groups(self) -> dict[Tensor, Group]:
        """Tensor -> the ranks that share a slice of it."""
        return {t: group_of(self.machine, self.grid, self.order, LACKS[t]) for t in TENSORS}

    @cached_property
    def sizes(self) -> dict[Tensor, int]:
        """Tensor -> bytes of the largest slice."""
        return {t: self.footprints.slice(t) * self.nest.word_bytes for t in TENSORS}

    def computing(self, pass_: Pass) -> float:
        """Compute seconds of the most loaded rank in a pass."""
        if pass_ not in self._computing:
            self._computing[pass_] = self._compute(pass_)
        return self._computing[pass_]

    def _compute(self, pass_: Pass) -> float:
        """The same, computed.

        Along a turned axis the kernel computes all output rows that the block touches: it multiplies zeros
        in place of the rows of its neighbours.
        """
        rows = {axis: self.footprints.rows(axis, PassPlan()) for axis in self.nest.turned}
        work, busy = self.work._replace(**rows), float(self.grid.size)
        seconds: float = compute_seconds(self.machine, self.nest, work, self.weighted, pass_)
        return seconds * self.machine.crowded(busy)

    def halo_seconds(self, rows: tuple[Rows, ...]) -> float:
        """Seconds of some halo exchanges."""
        return sum(self._exchange_seconds(node) for node in rows)

    def _exchange_seconds(self, node: Rows) -> float:
        """Seconds of one halo exchange: two neighbours per split axis, on the outermost level they cross."""
        if node not in self._exchanges:
            split = tuple(axis for axis in self.nest.framed(node.tensor) if getattr(self.grid, axis) > 1)
            group = group_of(self.machine, self.grid, self.order, split)
            size = self.halo_words(node) * self.nest.word_bytes
            seconds = exchange_seconds(self.machine, size, group, 2 * len(split)) if size else 0.0
            self._exchanges[node] = seconds
        return self._exchanges[node]

    def halo_words(self, node: Rows) -> int:
        """The most words that a rank receives from its neighbours in a halo exchange."""
        return self.footprints.distribution.halo_words(node.tensor, returns=node.direction == "return")

    def program(self, pass_: Pass, stationary: Tensor, panels: int = 1) -> PassProgram:
        """The schedule tree of a pass with this stationary tensor and number of panels."""
        counts = ONES.with_(along(stationary), panels)
        reuses, saves = self.reused_by[pass_], self.saved_by[pass_]
        plan = PassPlan(stationary, counts, pass_=pass_, reuses=reuses, saves=saves)
        return pass_program(self.footprints.distribution, plan)

    def travels(self, tensor: Tensor) -> bool:
        """Whether a tensor is communicated."""
        return travels(self.nest, self.weighted, tensor)

    def _candidate(self, pass_: Pass, stationary: Tensor, panels: int) -> Candidate:
        """A candidate for a pass. All numbers of panels from two on have the same tree."""
        distribution = self.footprints.distribution
        loops = (along(stationary),) if panels > 1 else ()
        plan = Structure(pass_, stationary, loops, self.reused_by[pass_], self.saved_by[pass_])
        turned = distribution.nest.turned
        rows, moves = walked(plan, distribution.groups, distribution.row_axes, turned)
        rotation: tuple[Tensor, ...] = ()
        if self.sequence:  # the convention of the oracle has no rotation
            rotation = rotated_at(distribution, plan, panels)
        if not self.weighted:
            moves = tuple(node for node in moves if self.travels(node.tensor))
        return Candidate(pass_, stationary, panels, rows, moves, rotation)

    def most_panels(self, stationary: Tensor) -> int:
        """The most panels that the block of a process admits."""
        return int(getattr(self.work, along(stationary)))

    def streams(self, stationary: Tensor) -> int:
        """The most panels with which the local kernel is fast."""
        most = self.most_panels(stationary)
        return most if LACKED_INDEX[stationary] == "x" else max(1, most // THINNEST)

    def counts(self, stationary: Tensor) -> list[int]:
        """The numbers of panels to compare: powers of two, and the numbers of shards along the panels."""
        cuts = self.footprints.distribution.shard_cuts.values() if self.sequence else ()
        parts = (dict(cut).get(along(stationary), 1) for cut in cuts)
        return sorted({*PANELS, *parts})

    def passed(self, pass_: Pass, stationary: Tensor | None = None, panels: int | None = None) -> PassTime:
        """The time of a pass with the best stationary tensor and number of panels, or with the given ones."""
        times: list[tuple[float, int, int]] = []
        for index, tensor in enumerate(TENSORS):
            if stationary in (None, tensor):
                counts = [panels] if panels else [n for n in self.counts(tensor) if n <= self.streams(tensor)]
                if all(node.tensor == tensor for node in self._candidate(pass_, tensor, 1).moves):
                    counts = counts[:1]  # nothing streams
                times += [(self._exposed(self._candidate(pass_, tensor, n))[0], n, index) for n in counts]
        _, chosen, index = min(times)
        return self._described(self._candidate(pass_, TENSORS[index], chosen))

    def _cost(self, choice: Candidate, node: Gather | Reduce) -> Cost:
        """The cost of one collective of a move: of a whole slice, or of one panel."""
        pieces = choice.pieces(node)
        crowd = 1.0 if node.tensor in choice.rotation else self._crowd(choice, node, pieces)
        size = self.sizes[node.tensor] / pieces * crowd
        return costs_on(self.machine)(OPS[type(node)], size, self.groups[node.tensor])

    def _crowd(self, choice: Candidate, node: Gather | Reduce, pieces: int) -> float:
        """The factor on the time of a panel if few ranks of its group send or receive its words.

        If shards and panels are cut along the same dimension, few ranks own a panel, and only their links
        carry it, unless ranks use different panels. A panel of a single rank is broadcast with a tree. The
        convention of the oracle has no such factor.
        """
        if not self.sequence or pieces == 1:
            return 1.0
        cuts = dict(self.footprints.distribution.shard_cuts[node.tensor])
        parts = cuts.get(along(choice.stationary), 1)
        ranks = self.groups[node.tensor].size
        if parts == 1:
            return 1.0
        if isinstance(node, Gather) and parts == ranks <= pieces:
            return min(parts, math.ceil(math.log2(ranks)) * ranks / (ranks - 1))
        return min(pieces, parts)

    def _exposed(self, choice: Candidate) -> tuple[float, float]:
        """(seconds of communication that does not overlap, seconds of all communication)."""
        alone, streamed, last = self.halo_seconds(choice.rows), 0.0, 0.0
        for node in choice.moves:
            pieces = choice.pieces(node)
            seconds = self._cost(choice, node).seconds * pieces
            alone, streamed = (alone + seconds, streamed) if pieces == 1 else (alone, streamed + seconds)
            if isinstance(node, Reduce) and self.sequence[1:-1] == (choice.pass_,):
                last = seconds / pieces
        computing = self.computing(choice.pass_)
        hidden = self._hidden(choice, streamed) + self.machine.overlap * min(computing, last)
        calls = (choice.panels - 1) * (self.machine.compute.overhead + self._again(choice.stationary))
        return alone + streamed - hidden + calls, alone + streamed

    def _hidden(self, choice: Candidate, streamed: float) -> float:
        """Seconds of streaming that overlaps with computing: all panels but the first.

        If only one tensor is streamed and it is rotated, whole shards are sent. Then a rank owns a part of
        the first panel and waits only for the parts of other ranks.
        """
        panels, computing = choice.panels, self.computing(choice.pass_)
        alone = tuple(node.tensor for node in choice.moves if node.scope == "panel")
        if len(alone) == 1 and alone == choice.rotation:
            parts = dict(self.footprints.distribution.shard_cuts[alone[0]])[along(choice.stationary)]
            later = streamed * (parts - parts // panels) / (parts - 1)
            return self.machine.overlap * min(computing * (panels - 1) / panels, later)
        return self.machine.overlap * min(computing, streamed) * (panels - 1) / panels

    def _again(self, stationary: Tensor) -> float:
        """Seconds of one more kernel call, which reads or updates the stationary tensor again.

        It costs three accesses per word: the kernel reads the tensor and the library reorders it, or the
        kernel adds partial sums to it. The convention of the oracle has no such term.
        """
        bandwidth = self.machine.compute.bandwidth
        return 3 * self.sizes[stationary] / bandwidth if bandwidth and self.sequence else 0.0

    def _described(self, choice: Candidate) -> PassTime:
        exposed, comm = self._exposed(choice)
        rows = self.halo_seconds(choice.rows)
        parts = [("halo", "neighbours", rows)] if rows else []
        for node in choice.moves:
            cost = self._cost(choice, node)
            parts.append((node.tensor, cost.algorithm, cost.seconds * choice.pieces(node)))
        pass_, stationary, panels, *_ = choice
        return PassTime(pass_, stationary, panels, self.computing(pass_), comm, exposed, tuple(parts))

    def least(self, pass_: Pass) -> float:
        """The seconds of a pass with its best choice."""
        choice = self._candidate(pass_, "Out", 1)
        if choice.moves:
            return self.passed(pass_).total
        return self.computing(pass_) + self.halo_seconds(choice.rows)

    def passes(self, training: bool) -> list[PassTime]:
        """The times of the forward pass, or of all passes of a training step."""
        return [self.passed(pass_) for pass_ in self.wanted(training)]

    def wanted(self, training: bool) -> Passes:
        """The forward pass, or all passes of a training step."""
        return self.steps if training else self.steps[:1]


def along(stationary: Tensor) -> Axis:
    """The axis along which panels are cut if a tensor is stationary."""
    axes: dict[Tensor, Axis] = {"In": "k", "Ker": "b", "Out": "c"}
    return axes[stationary]
