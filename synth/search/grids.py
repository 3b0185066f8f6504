"""The space of process grids, and the work balance that every grid must keep.

A grid is one count per axis. The product of the counts is at most P. Along a long axis the candidates are
the counts that shrink the largest block (other counts add processes without less work for any), and the
divisors of P, so that grids of exactly P processes are among them. Along a short axis every count is a
candidate, because padding and uneven blocks can matter more there.

The balance rule: w* is the least work of the most loaded process over all grids of at most P processes. A
process of a grid may have at most `(1 + balance)·w*`. Work is the number of iterations of the largest
block, `∏ ceil(N_i / P_i)`. Every iteration has the same number of multiply-adds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.base.arithmetic import divisors
from synth.base.doors import either, option
from synth.base.errors import InfeasibleError
from synth.layer.axes import AXES, X_AXES, Axis, PerAxis
from synth.layer.nest import Nest

Array = NDArray[Any]
SHORT = 16  # every count is a candidate up to this extent
FULL = 2048  # every useful count is a candidate up to this count; above it only smooth counts


def useful_counts(extent: int, procs: int) -> list[int]:
    """The numbers of parts worth trying for an axis: they shrink its largest block, or divide `procs`."""
    most = min(extent, procs)
    counts = {n for n in divisors(procs) if n <= most}
    if extent <= SHORT:
        return list(range(1, most + 1))
    root = math.isqrt(extent) + 1  # the count or its block is at most this
    counts |= set(range(1, min(most, root, FULL) + 1))
    if most > root:
        sizes = range(1, min(root, FULL) + 1)
        counts |= {n for n in (-(-extent // size) for size in sizes) if n <= most}
    if min(most, root) > FULL:
        counts |= set(_smooth(most))
    return sorted(counts)


def _smooth(most: int) -> Iterator[int]:
    """The numbers up to `most` without prime factors above 7."""
    numbers = [1]
    for prime in (2, 3, 5, 7):
        for number in list(numbers):
            while (number := number * prime) <= most:
                numbers.append(number)
    yield from numbers


@dataclass(frozen=True)
class Space:
    """The grids of at most (if `exact`: exactly) `procs` processes. `fixed`: axis -> its pinned count."""

    nest: Nest
    procs: int
    fixed: Mapping[str, int]
    exact: bool = False

    def counts(self, axis: Axis) -> list[int]:
        """The candidate counts of one axis, ascending."""
        return self._counts[axis]

    @cached_property
    def _counts(self) -> dict[Axis, list[int]]:
        return {axis: self._candidates(axis) for axis in AXES}

    def _candidates(self, axis: Axis) -> list[int]:
        if axis in self.fixed:
            return [self.fixed[axis]]
        extent = getattr(self.nest.extents, axis)
        if self.exact:
            return [n for n in divisors(self.procs) if n <= extent]
        return useful_counts(extent, self.procs)

    def block(self, axis: Axis, parts: int) -> int:
        """The length of the largest block along an axis."""
        return -(-int(getattr(self.nest.extents, axis)) // parts)

    @cached_property
    def least_work(self) -> int | None:
        """w*: the least iterations of the most loaded process, or None if no grid exists.

        Dynamic programming over the axes: number of processes -> least work so far. A state is dropped if
        an even split of the remaining iterations over the remaining processes is worse than a known grid.
        """
        known, rest = self._some_work(), self.nest.extents.size
        wide: Any = np.int64 if max(rest << 7, known or 0, self.procs) * self.procs < 2**62 else object
        used, work = np.ones((2, 1), wide)
        for axis in AXES:
            rest //= getattr(self.nest.extents, axis)
            counts = self.counts(axis)
            parts = np.array(counts, wide)
            blocks = np.array([self.block(axis, count) for count in counts], wide)
            many = np.searchsorted(parts, self.procs // used, "right")
            index = np.repeat(np.arange(len(used)), many)
            at = np.arange(len(index)) - np.repeat(np.cumsum(many) - many, many)
            used, work = used[index] * parts[at], work[index] * blocks[at]
            if known is not None:
                near = np.asarray(work * rest <= known * (self.procs // used), bool)
                used, work = used[near], work[near]
            used, work = _undominated(used, work, self.exact)
        return min(work[used == self.procs].tolist() if self.exact else work.tolist(), default=None)

    def _some_work(self) -> int | None:
        """The least work of a few grids. Each splits one axis as far as possible, then the others in turn."""
        works = []
        for first in AXES:
            procs, work = self.procs, 1
            for axis in (first, *(axis for axis in AXES if axis != first)):
                counts = self.counts(axis)
                fitting = [n for n in counts if procs % n == 0] if self.exact else counts
                at = bisect_right(fitting, procs)
                if at == 0:
                    break
                procs, work = procs // fitting[at - 1], work * self.block(axis, fitting[at - 1])
            else:
                if procs == 1 or not self.exact:
                    works.append(work)
        return min(works, default=None)

    @cached_property
    def x_grids(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """All (processes, iterations of the largest block, counts of b, d, h, w), ascending."""
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
        """All grids that split only g, c and k."""
        for g in self.counts("g"):
            for c in self.counts("c"):
                for k in self.counts("k"):
                    if g * c * k <= self.procs and (not self.exact or self.procs % (g * c * k) == 0):
                        yield PerAxis(g=g, c=c, k=k)


def work_cap(least_work: int, balance: float) -> int:
    """The most iterations of a process: (1 + balance)·w*, with the decimal value of `balance`."""
    return least_work + int(Fraction(str(balance)) * least_work)


def no_grid(space: Space) -> InfeasibleError:
    """The error of a space without grids: too many fixed parts, or no grid of exactly `procs` processes."""
    pinned = ", ".join(f"{axis}={n}" for axis, n in space.fixed.items())
    within = f" with {pinned}" if pinned else ""
    needed = math.prod(space.fixed.values())
    if needed > space.procs:
        return InfeasibleError(
            f"no grid of at most {space.procs} processes exists{within}; "
            f"take at least {needed} processes or free a part of {option('grid')}"
        )
    return InfeasibleError(
        f"no grid of exactly {space.procs} processes exists{within} for {space.nest}; "
        f"{either(('allow idle processes (leave out {})', 'exact_procs'), 'take another number')}"
    )


def all_grids(space: Space, procs: int) -> list[PerAxis]:
    """Every grid of a space with at most (if the space is exact: exactly) `procs` processes."""
    grids = []
    for channels in space.channel_grids():
        most = procs // channels.size
        for count, _, (b, d, h, w) in space.x_grids:
            if count > most:
                break
            if count == most or not space.exact:
                grids.append(PerAxis(b, channels.g, d, h, w, channels.c, channels.k))
    return grids


def _undominated(used: Array, work: Array, exact: bool) -> tuple[Array, Array]:
    """Processes and work of states, without those that have no less work than one with fewer processes.

    exact: those with as many processes.
    """
    order = np.argsort(work, kind="stable")
    order = order[np.argsort(used[order], kind="stable")]
    used, work = used[order], work[order]
    before = used[:-1] == used[1:] if exact else np.minimum.accumulate(work)[:-1] <= work[1:]
    kept = np.concatenate([np.ones(len(used[:1]), bool), ~np.asarray(before, bool)])
    return used[kept], work[kept]
