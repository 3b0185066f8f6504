"""Regimes of a problem, where they change along P or memory, and the gap between a plan and its bound.

The regime says how many of the three tensors must travel. For a bound: a tensor whose accessed words `x`
exceed the shard that a process owns must be received. One such tensor is the 1D regime, two are 2D, three
are 3D. More than one segment means that the memory limit binds (2.5D). For matrix products with ample
memory these are the three cases of Al Daas et al. (SPAA'22). For a plan: the number of composite indices
x, c, k that its grid splits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from synth.bounds.universal import Accounting, UniversalBound, universal_bound
from synth.layer.axes import PerAxis
from synth.layer.nest import Nest

Regime = Literal["local", "1D", "2D", "2.5D", "3D"]
BY_COUNT: tuple[Regime, ...] = ("local", "1D", "2D", "3D")


def regime_of(bound: UniversalBound) -> Regime:
    """The regime of a bound."""
    if bound.segments > 1:
        return "2.5D"
    return BY_COUNT[sum(x > shard * (1 + 1e-9) for x, shard in zip(bound.x, bound.shards, strict=True))]


def regime_of_grid(grid: PerAxis, memory_binds: bool = False) -> Regime:
    """The regime of a process grid. `memory_binds`: a plan with more memory would move fewer words."""
    split = sum(parts > 1 for parts in (grid.x, grid.c, grid.k))
    return "2.5D" if split == 3 and memory_binds else BY_COUNT[split]


# --- where the regime changes --------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change of the bound's regime between two neighbouring points of a sweep."""

    along: Literal["procs", "memory"]
    at: int  # the first value with the new regime: processes, or bytes per process
    before: Regime
    after: Regime
    fixed: int | None  # the other coordinate: bytes per process (None: unlimited), or processes

    def __str__(self) -> str:
        what = "P" if self.along == "procs" else "memory, bytes per process,"
        return f"{self.before} below {what} = {self.at}, {self.after} from there"


def changes_along_procs(
    nest: Nest, procs: list[int], limit_words: int | None, accounting: Accounting = "received"
) -> list[Change]:
    """The process counts at which the regime changes, exactly. `procs` ascending."""
    fixed = None if limit_words is None else limit_words * nest.word_bytes

    def regime_at(p: int) -> Regime:
        return regime_of(universal_bound(nest, p, limit_words, accounting=accounting))

    changes = []
    for low, high in itertools.pairwise(procs):
        while regime_at(low) != regime_at(high):
            first = _first_change(regime_at, low, high)
            changes.append(Change("procs", first, regime_at(low), regime_at(first), fixed))
            low = first
    return changes


def changes_along_memory(nest: Nest, procs: int, sizes: list[int]) -> list[Change]:
    """The memory sizes at which the regime changes, exact to one word. `sizes` in bytes, ascending."""

    def regime_at(words: int) -> Regime:
        return regime_of(universal_bound(nest, procs, words))

    changes = []
    words = [max(1, size // nest.word_bytes) for size in sizes]
    for low, high in itertools.pairwise(words):
        while regime_at(low) != regime_at(high):
            first = _first_change(regime_at, low, high)
            at_bytes = first * nest.word_bytes
            changes.append(Change("memory", at_bytes, regime_at(low), regime_at(first), procs))
            low = first
    return changes


def _first_change(regime_at: Callable[[int], Regime], low: int, high: int) -> int:
    """A point in (low, high] whose regime differs from low's and from its predecessor's."""
    start = regime_at(low)
    while high - low > 1:
        middle = (low + high) // 2
        if regime_at(middle) == start:
            low = middle
        else:
            high = middle
    return high


# --- the gap -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gap:
    """Received words per process by which a plan exceeds the universal bound, in three parts.

    integer  plan - relaxation. Blocks are whole numbers, a grid has at most P processes, and the plan
             counts the process that receives most, not the average one.
    halo     relaxation - relaxation without halos: rows that two blocks both read.
    bound    relaxation without halos - bound. The relaxation has blocks; the bound admits any set of
             multiply-adds. Negative where the bound counts more halo than blocks need.
    """

    integer: float
    halo: float
    bound: float

    @property
    def total(self) -> float:
        """The whole gap in words: plan - bound."""
        return self.integer + self.halo + self.bound


def split_gap(plan: float, relaxed: float, relaxed_without_halos: float, bound: float) -> Gap:
    """The three parts of `plan - bound`. All arguments are received words per process."""
    return Gap(plan - relaxed, relaxed - relaxed_without_halos, relaxed_without_halos - bound)
