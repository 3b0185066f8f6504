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
from functools import lru_cache

from synth.axes import LACKED_INDEX, LACKS, SPATIAL, TENSORS, PerAxis, Tensor
from synth.distribution import Distribution
from synth.machine.collectives import Cost, Group, Op, best
from synth.machine.groups import Order, group_of
from synth.machine.levels import Machine
from synth.memory import Footprints, halo_rows
from synth.nest import Nest
from synth.passes import PASSES, WRITES, Pass

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
        return machine.compute.overhead + 2 * work.size * nest.taps / machine.compute.rate
    bandwidth = machine.compute.bandwidth or machine.compute.rate
    touched = work.size * (nest.strides + 1) * nest.word_bytes
    return machine.compute.overhead + touched / bandwidth


class LayerTimer:
    """The times of one placed grid of a layer. `seconds` overrides the computing of one pass."""

    def __init__(
        self, machine: Machine, nest: Nest, grid: PerAxis, order: Order, weighted: bool = True
    ) -> None:
        self.machine, self.nest, self.grid, self.order, self.weighted = machine, nest, grid, order, weighted
        self.footprints = Footprints(Distribution(nest, grid))
        self.work = self.footprints.work

    def group(self, tensor: Tensor) -> Group:
        """The ranks that share a slice of the tensor."""
        return group_of(self.machine, self.grid, self.order, LACKS[tensor])

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
        return flat * int(carried - math.prod(row.carried - row.missing for row in rows))

    def travels(self, pass_: Pass) -> dict[Tensor, Op]:
        """Tensor -> the collective that brings it in or sums it; backward-filter has dOut already."""
        ops: dict[Tensor, Op] = {}
        for tensor in TENSORS:
            if self.group(tensor).size == 1 or (tensor == "Ker" and not self.weighted):
                continue
            if pass_ == "backward-filter" and tensor == "Out":
                continue
            ops[tensor] = "reduce_scatter" if WRITES[pass_] == tensor else "all_gather"
        if not self.weighted and self.nest.extents.c == 1:
            ops.pop("Out", None)
        return ops

    def streams(self, stationary: Tensor) -> int:
        """Positions along which panels can be cut."""
        index = LACKED_INDEX[stationary]
        if index == "x":
            return self.work.b
        return max(1, int(getattr(self.work, index)) // THINNEST)

    def passed(self, pass_: Pass, stationary: Tensor | None = None, panels: int | None = None) -> PassTime:
        """The best stationary tensor and number of panels of a pass, unless they are given."""
        stays = (stationary,) if stationary else TENSORS
        times = [self._timed(pass_, s, n) for s in stays for n in self._panel_counts(s, panels)]
        return min(times, key=lambda t: (t.total, t.panels, TENSORS.index(t.stationary)))

    def _panel_counts(self, stationary: Tensor, panels: int | None) -> list[int]:
        return [panels] if panels else [n for n in PANELS if n <= self.streams(stationary)]

    def _timed(self, pass_: Pass, stationary: Tensor, panels: int) -> PassTime:
        compute = compute_seconds(self.machine, self.nest, self.work, self.weighted)
        calls = (panels - 1) * self.machine.compute.overhead
        halo = self.halo_seconds()
        parts = [("halo", "neighbours", halo)] if halo else []
        alone, streamed = halo, 0.0
        for tensor, op in self.travels(pass_).items():
            pieces = 1 if tensor == stationary else panels
            size = self.footprints.slice(tensor) * self.nest.word_bytes
            made = collective(self.machine, op, size / pieces, self.group(tensor))
            seconds = made.seconds * pieces
            parts.append((tensor, made.algorithm, seconds))
            alone, streamed = (alone + seconds, streamed) if pieces == 1 else (alone, streamed + seconds)
        hidden = self.machine.overlap * min(compute, streamed) * (panels - 1) / panels
        exposed = alone + streamed - hidden + calls
        return PassTime(pass_, stationary, panels, compute, alone + streamed, exposed, tuple(parts))

    def passes(self, training: bool) -> list[PassTime]:
        """Forward, or all three passes; a pooling has no backward-filter."""
        wanted = PASSES if training else PASSES[:1]
        return [self.passed(p) for p in wanted if self.weighted or p != "backward-filter"]


def layer_seconds(
    machine: Machine, nest: Nest, grid: PerAxis, order: Order, training: bool = False, weighted: bool = True
) -> float:
    """Seconds of a layer: forward, or all three passes."""
    timer = LayerTimer(machine, nest, grid, order, weighted)
    return sum(each.total for each in timer.passes(training))
