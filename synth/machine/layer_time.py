"""Seconds of one layer on a machine: computing, and the communication that computing does not hide.

The words of a placed grid do not depend on which tensor stays or on the number of panels; the time does.
The stationary tensor and the halo travel before (or after) everything else; the other two tensors stream in
n panels, one collective per panel, while the previous panel is used:

    time = exposed + (C + S)/n + max(C, S)·(n-1)/n        C computing, S streaming

and `machine.overlap` says how much of the hidden part really hides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from synth.layer.axes import LACKED_INDEX, LACKS, SPATIAL, TENSORS, Axis, Order, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import PASSES, WRITES, Pass, Passes, reuse_intervals
from synth.machine.collectives import Cost, Group, Op, best
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of
from synth.schedule.distribution import Distribution
from synth.schedule.halo_rows import halo_rows
from synth.schedule.memory import Footprints
from synth.schedule.panel_rotation import worth_rotating

THINNEST = 16  # channels below which a panel feeds the local kernel badly
PANELS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class PassTime:
    """Seconds of one pass. `comm` is all communication, `exposed` what computing does not hide."""

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


@lru_cache(maxsize=1 << 17)
def collective(machine: Machine, op: Op, size: float, group: Group) -> Cost:
    """`collectives.best`, remembered."""
    return best(machine, op, size, group)


def compute_seconds(machine: Machine, nest: Nest, work: PerAxis, weighted: bool) -> float:
    """Seconds that the most loaded rank computes in one pass: 2 operations per multiply-add.

    A pooling is bound by memory: it reads its input and writes its output once.
    """
    if weighted:
        rate = machine.compute.rate_of(min(work.c, work.k))
        return machine.compute.overhead + 2 * work.size * nest.taps / rate
    bandwidth = machine.compute.bandwidth or machine.compute.rate
    touched = work.size * (nest.strides + 1) * nest.word_bytes
    return machine.compute.overhead + touched / bandwidth


class LayerTimer:
    """The times of one placed grid of a layer; `footprints` are those of the grid, however it is placed.

    `kept`: what stays from the pass that gathers it to the pass that finds it. By default dOut alone does,
    the oracle's convention.
    `sequence`: the passes in order of execution; where they are those of a training step, the last sums of
    the second one travel while the third one computes. By default nothing of one pass hides in another.
    `steps`: without a sequence, the passes of a training step; the first one runs forward.
    """

    def __init__(
        self,
        machine: Machine,
        footprints: Footprints,
        order: Order,
        weighted: bool = True,
        kept: frozenset[Tensor] | None = None,
        sequence: Passes = (),
        steps: Passes | None = None,
    ) -> None:
        self.sequence = sequence
        self.steps = steps or (PASSES if weighted else PASSES[:2])  # a pooling has no backward-filter
        found = frozenset({"Out"}) if kept is None else kept
        lives = reuse_intervals(sequence) or reuse_intervals(self.steps)
        self.found = {tensor: last for tensor, (_, last) in lives.items() if tensor in found}
        self.kept = kept or frozenset()
        self.machine, self.footprints, self.order, self.weighted = machine, footprints, order, weighted
        self.nest, self.grid, self.work = footprints.nest, footprints.grid, footprints.work

    @cached_property
    def groups(self) -> dict[Tensor, Group]:
        """Tensor -> the ranks that share a slice of it."""
        return {t: group_of(self.machine, self.grid, self.order, LACKS[t]) for t in TENSORS}

    @cached_property
    def sizes(self) -> dict[Tensor, int]:
        """Tensor -> bytes of the largest slice."""
        return {t: self.footprints.slice(t) * self.nest.word_bytes for t in TENSORS}

    @cached_property
    def compute(self) -> float:
        """Seconds that the most loaded rank computes in one pass."""
        return compute_seconds(self.machine, self.nest, self.work, self.weighted)

    @cached_property
    def halo_seconds(self) -> float:
        """Strips from two neighbours per split axis, on the outermost level that such neighbours cross."""
        words = self.halo_words()
        if words == 0:
            return 0.0
        split = tuple(axis for axis in SPATIAL if getattr(self.grid, axis) > 1)
        group = group_of(self.machine, self.grid, self.order, split)
        if not group.units():
            return 0.0
        level, _ = group.units()[-1]
        one = self.machine.levels[level].message(0)
        whole = self.machine.levels[level].message(words * self.nest.word_bytes, group.shared(level))
        return whole + one * (2 * len(split) - 1)

    def halo_words(self) -> int:
        """Words of the widest strips that a rank receives from its neighbours."""
        nest, parts = self.nest, dict(self.footprints.distribution.shares["In"])
        flat: int = math.prod(-(-getattr(self.work, d) // parts.get(d, 1)) for d in ("b", "g", "c"))
        rows = [halo_rows(nest.windows[a], getattr(nest.extents, a), getattr(self.grid, a)) for a in SPATIAL]
        carried = math.prod(row.carried for row in rows)
        if not any(row.moves for row in rows):
            return 0
        return flat * int(carried - math.prod(row.kept for row in rows))

    def travels(self, pass_: Pass) -> dict[Tensor, Op]:
        """Tensor -> the collective that brings it in or sums it; what an earlier pass kept is there."""
        ops: dict[Tensor, Op] = {}
        for tensor in TENSORS:
            if self.groups[tensor].size == 1 or (tensor == "Ker" and not self.weighted):
                continue
            if self.found.get(tensor) == pass_:
                continue
            ops[tensor] = "reduce_scatter" if WRITES[pass_] == tensor else "all_gather"
        if not self.weighted and self.nest.extents.c == 1:
            ops.pop("Out", None)
        return ops

    def most_panels(self, stationary: Tensor) -> int:
        """Positions along which panels can be cut."""
        return int(getattr(self.work, along(stationary)))

    def streams(self, stationary: Tensor) -> int:
        """Panels that feed the local kernel well, at most."""
        most = self.most_panels(stationary)
        return most if LACKED_INDEX[stationary] == "x" else max(1, most // THINNEST)

    def counts(self, stationary: Tensor) -> list[int]:
        """Numbers of panels to compare: powers of two, and as many as shares are cut into along them."""
        shares = self.footprints.distribution.shares.values() if self.sequence else ()
        parts = (dict(share).get(along(stationary), 1) for share in shares)
        return sorted({*PANELS, *parts})

    def passed(self, pass_: Pass, stationary: Tensor | None = None, panels: int | None = None) -> PassTime:
        """The best stationary tensor and number of panels of a pass, unless they are given."""
        travels = self.travels(pass_)
        times: list[tuple[float, int, int]] = []
        for index, tensor in enumerate(TENSORS):
            if stationary in (None, tensor):
                counts = [panels] if panels else [n for n in self.counts(tensor) if n <= self.streams(tensor)]
                if all(t == tensor for t in travels):
                    counts = counts[:1]  # nothing streams
                times += [(self._exposed(pass_, travels, tensor, n)[0], n, index) for n in counts]
        _, chosen, index = min(times)
        return self._described(pass_, travels, TENSORS[index], chosen)

    def _seconds(
        self, op: Op, tensor: Tensor, stationary: Tensor, pieces: int, skewed: tuple[Tensor, ...]
    ) -> Cost:
        """What one of the panels of a tensor takes."""
        crowd = 1.0 if tensor in skewed else self._crowd(op, tensor, stationary, pieces)
        size = self.sizes[tensor] / pieces * crowd
        return collective(self.machine, op, size, self.groups[tensor])

    def _skewed(self, pass_: Pass, stationary: Tensor, panels: int) -> tuple[Tensor, ...]:
        """The tensors of which ranks are at different panels (`panel_rotation`); none for the oracle."""
        if panels == 1 or stationary != WRITES[pass_] or not self.sequence:
            return ()
        brought = (t for t, op in self.travels(pass_).items() if op == "all_gather" and t != stationary)
        return worth_rotating(self.footprints.distribution, brought, along(stationary), panels)

    def _crowd(self, op: Op, tensor: Tensor, stationary: Tensor, panels: int) -> float:
        """How many times as long a panel takes because few of the ranks that share it carry its words.

        Where shares are cut along the dimension that panels are, a panel comes from (or goes to) few ranks,
        whose links carry it alone while those of others rest, unless all use different panels; from a single
        one it is broadcast by a tree. The oracle's convention has no such factor.
        """
        shares = dict(self.footprints.distribution.shares[tensor])
        parts, ranks = shares.get(along(stationary), 1), self.groups[tensor].size
        if not self.sequence or min(panels, parts) == 1:
            return 1.0
        if op == "all_gather" and parts == ranks <= panels:
            return min(parts, math.ceil(math.log2(ranks)) * ranks / (ranks - 1))
        return min(panels, parts)

    def _exposed(
        self, pass_: Pass, travels: dict[Tensor, Op], stationary: Tensor, panels: int
    ) -> tuple[float, float]:
        """(seconds that computing does not hide, seconds of all communication)."""
        alone, streamed, last = self.halo_seconds, 0.0, 0.0
        skewed = self._skewed(pass_, stationary, panels)
        for tensor, op in travels.items():
            pieces = 1 if tensor == stationary else panels
            seconds = self._seconds(op, tensor, stationary, pieces, skewed).seconds * pieces
            alone, streamed = (alone + seconds, streamed) if pieces == 1 else (alone, streamed + seconds)
            if WRITES[pass_] == tensor and self.sequence[1:-1] == (pass_,):
                last = seconds / pieces
        hidden = self._hidden(travels, stationary, panels, streamed, skewed)
        hidden += self.machine.overlap * min(self.compute, last)
        calls = (panels - 1) * (self.machine.compute.overhead + self._again(stationary))
        return alone + streamed - hidden + calls, alone + streamed

    def _hidden(
        self,
        travels: dict[Tensor, Op],
        stationary: Tensor,
        panels: int,
        streamed: float,
        skewed: tuple[Tensor, ...],
    ) -> float:
        """Seconds of panels that travel while others are used: of all but the first that a step waits for.

        A tensor that streams alone, skewed, travels in whole shares: those of the first panel are there but
        for the ones that other ranks have of it.
        """
        alone = tuple(t for t in travels if t != stationary)
        if len(alone) == 1 and alone == skewed:
            parts = dict(self.footprints.distribution.shares[alone[0]])[along(stationary)]
            later = streamed * (parts - parts // panels) / (parts - 1)
            return self.machine.overlap * min(self.compute * (panels - 1) / panels, later)
        return self.machine.overlap * min(self.compute, streamed) * (panels - 1) / panels

    def _again(self, stationary: Tensor) -> float:
        """Seconds that one more panel costs the local kernel: what stays passes through it once more.

        Three times over its words: the kernel reads it, and the library puts it into an order of its own; or
        the panel's sums are added to it. The oracle's convention has no such term.
        """
        bandwidth = self.machine.compute.bandwidth
        return 3 * self.sizes[stationary] / bandwidth if bandwidth and self.sequence else 0.0

    def _described(self, pass_: Pass, travels: dict[Tensor, Op], stationary: Tensor, panels: int) -> PassTime:
        exposed, comm = self._exposed(pass_, travels, stationary, panels)
        parts = [("halo", "neighbours", self.halo_seconds)] if self.halo_seconds else []
        skewed = self._skewed(pass_, stationary, panels)
        for tensor, op in travels.items():
            pieces = 1 if tensor == stationary else panels
            made = self._seconds(op, tensor, stationary, pieces, skewed)
            parts.append((tensor, made.algorithm, made.seconds * pieces))
        return PassTime(pass_, stationary, panels, self.compute, comm, exposed, tuple(parts))

    def least(self, pass_: Pass) -> float:
        """Seconds of the best choice, without its description."""
        travels = self.travels(pass_)
        if not travels:
            return self.compute + self.halo_seconds
        return self.passed(pass_).total

    def passes(self, training: bool) -> list[PassTime]:
        """Forward, or all passes of a training step."""
        return [self.passed(pass_) for pass_ in self.wanted(training)]

    def wanted(self, training: bool) -> Passes:
        """The passes that there are."""
        return self.steps if training else self.steps[:1]


def along(stationary: Tensor) -> Axis:
    """The axis along which panels are cut while a tensor stays."""
    axes: dict[Tensor, Axis] = {"In": "k", "Ker": "b", "Out": "c"}
    return axes[stationary]


def layer_seconds(
    machine: Machine, nest: Nest, grid: PerAxis, order: Order, passes: Passes, weighted: bool = True
) -> float:
    """Seconds of a layer in some passes: the one that runs forward, or with the gradients."""
    timer = LayerTimer(machine, Footprints(Distribution(nest, grid)), order, weighted, steps=passes)
    return sum(timer.least(pass_) for pass_ in passes)
