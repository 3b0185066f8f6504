"""The space of process grids, and the work balance that a grid must keep.

A grid is one count per axis with product at most P. Along a long axis only counts that shrink the largest
block are tried (any other count adds processes that relieve nobody), and the divisors of P, so that a grid
of exactly P processes is always among them. Along a short axis every count is tried: there, how padding
and uneven cuts fall out can matter more.

The balance rule: let w* be the least work of the most loaded process over all grids of at most P
processes; a grid may load a process with at most `(1 + balance)·w*`. Work is counted in iterations of
the block, `∏ ceil(N_i / P_i)`, each of which costs the same number of multiply-adds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from synth.base.arithmetic import divisors
from synth.layer.axes import AXES, X_AXES, Axis, PerAxis
from synth.layer.nest import Nest

SHORT = 16  # extents up to which every count of an axis is tried
FULL = 2048  # counts up to which every useful count of an axis is tried; beyond, smooth ones only


def useful_counts(extent: int, procs: int) -> list[int]:
    """Processes along an axis of some extent that shrink the largest block, and divisors of `procs`."""
    most = min(extent, procs)
    counts = {n for n in divisors(procs) if n <= most}
    if extent <= SHORT:
        return list(range(1, most + 1))
    root = math.isqrt(extent) + 1  # a count or its block is at most this
    counts |= set(range(1, min(most, root, FULL) + 1))
    if most > root:
        sizes = range(1, min(root, FULL) + 1)
        counts |= {n for n in (-(-extent // size) for size in sizes) if n <= most}
    if min(most, root) > FULL:
        counts |= set(_smooth(most))
    return sorted(counts)


def _smooth(most: int) -> Iterator[int]:
    """Numbers up to `most` with prime factors 2, 3, 5 and 7 only."""
    numbers = [1]
    for prime in (2, 3, 5, 7):
        for number in list(numbers):
            while (number := number * prime) <= most:
                numbers.append(number)
    yield from numbers


@dataclass(frozen=True)
class Space:
    """Grids of at most (or, if `exact`, exactly) `procs` processes; `fixed` pins some axes."""

    nest: Nest
    procs: int
    fixed: Mapping[str, int]
    exact: bool = False

    def counts(self, axis: Axis) -> list[int]:
        """Processes that may stand along one axis."""
        return self._counts[axis]

    @cached_property
    def _counts(self) -> dict[Axis, list[int]]:
        return {axis: self._admitted(axis) for axis in AXES}

    def _admitted(self, axis: Axis) -> list[int]:
        if axis in self.fixed:
            return [self.fixed[axis]]
        extent = getattr(self.nest.extents, axis)
        if self.exact:
            return [n for n in divisors(self.procs) if n <= extent]
        return useful_counts(extent, self.procs)

    def block(self, axis: Axis, parts: int) -> int:
        """The largest block along an axis."""
        return -(-int(getattr(self.nest.extents, axis)) // parts)

    @cached_property
    def least_work(self) -> int | None:
        """w*: iterations of the most loaded process, at best; None when no grid exists.

        Axis by axis, the least work for every number of processes; a state is dropped when even an even
        cut of what is left, over all processes that are left, would not beat a grid that is known.
        """
        known = self._some_work()
        states = {1: 1}
        rest = self.nest.extents.size
        for axis in AXES:
            extent = getattr(self.nest.extents, axis)
            rest //= extent
            options = [(parts, self.block(axis, parts)) for parts in self.counts(axis)]
            grown: dict[int, int] = {}
            for procs, work in states.items():
                for parts, block in options:
                    total, size = work * block, procs * parts
                    if size > self.procs:
                        break
                    if known is not None and total * rest > known * (self.procs // size):
                        continue
                    if total < grown.get(size, total + 1):
                        grown[size] = total
            states = grown if self.exact else _undominated(grown)
        works = [work for procs, work in states.items() if not self.exact or procs == self.procs]
        return min(works, default=None)

    def _some_work(self) -> int | None:
        """The least work among a few grids: one axis is cut as finely as it goes, then the others in turn."""
        works = []
        for first in AXES:
            room, work = self.procs, 1
            for axis in (first, *(axis for axis in AXES if axis != first)):
                counts = self.counts(axis)
                fitting = [n for n in counts if room % n == 0] if self.exact else counts
                at = bisect_right(fitting, room)
                if at == 0:
                    break
                room, work = room // fitting[at - 1], work * self.block(axis, fitting[at - 1])
            else:
                if room == 1 or not self.exact:
                    works.append(work)
        return min(works, default=None)

    @cached_property
    def x_grids(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """All (processes, iterations of the largest block, parts along b, d, h, w); by processes."""
        grids: list[tuple[int, int, tuple[int, ...]]] = [(1, 1, ())]
        for axis in X_AXES:
            options = [(parts, self.block(axis, parts)) for parts in self.counts(axis)]
            grids = [
                (procs * parts, work * block, (*chosen, parts))
                for procs, work, chosen in grids
                for parts, block in options[: bisect_right(options, (self.procs // procs, 1 << 200))]
            ]
        if self.exact:
            grids = [grid for grid in grids if self.procs % grid[0] == 0]
        return sorted(grids)

    def channel_grids(self) -> Iterator[PerAxis]:
        """All grids over g, c and k alone."""
        for g in self.counts("g"):
            for c in self.counts("c"):
                for k in self.counts("k"):
                    if g * c * k <= self.procs and (not self.exact or self.procs % (g * c * k) == 0):
                        yield PerAxis(g=g, c=c, k=k)


def work_cap(least_work: int, balance: float) -> int:
    """The most iterations that a process may be loaded with: (1 + balance)·w*, `balance` as it is written."""
    return least_work + int(Fraction(str(balance)) * least_work)


def all_grids(space: Space, procs: int) -> list[PerAxis]:
    """Every grid of a space."""
    grids = []
    for channels in space.channel_grids():
        room = procs // channels.size
        for count, _, (b, d, h, w) in space.x_grids:
            if count > room:
                break
            if count == room or not space.exact:
                grids.append(PerAxis(b, channels.g, d, h, w, channels.c, channels.k))
    return grids


def _undominated(states: dict[int, int]) -> dict[int, int]:
    kept: dict[int, int] = {}
    least = None
    for procs in sorted(states):
        if least is None or states[procs] < least:
            least = kept[procs] = states[procs]
    return kept
