"""Regimes: how many of the three tensors have to travel, and where along P or memory that changes.

By the universal bound: a tensor whose x stands above its share is brought in from others. One such tensor is
the 1D regime, two the 2D, three the 3D; more than one segment means that memory is what binds (2.5D).
For matrix products and ample memory these are the three cases of Al Daas et al. (SPAA'22).
By the plan: how many of the composite indices x, c, k its grid cuts.
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


def regime_of(bound: UniversalBound, nest: Nest) -> Regime:
    """The regime of a bound."""
    if bound.segments > 1:
        return "2.5D"
    sizes = (nest.words["Out"], nest.words["In"], nest.words["Ker"])
    shares = (words / bound.procs for words in sizes)
    return BY_COUNT[sum(x > share * (1 + 1e-9) for x, share in zip(bound.x, shares, strict=True))]


def regime_of_grid(grid: PerAxis, memory_binds: bool = False) -> Regime:
    """The regime of a process grid; `memory_binds`: with more memory a plan would move fewer words."""
    cut = sum(parts > 1 for parts in (grid.x, grid.c, grid.k))
    return "2.5D" if cut == 3 and memory_binds else BY_COUNT[cut]


@dataclass(frozen=True)
class Change:
    """Between two neighbouring points of a sweep the regime of the bound changes; `at` is the first after."""

    along: Literal["procs", "memory"]
    at: int  # processes, or bytes per process
    before: Regime
    after: Regime
    fixed: int | None  # the other coordinate: bytes per process (None: any amount), or processes

    def __str__(self) -> str:
        what = "P" if self.along == "procs" else "memory, bytes per process,"
        return f"{self.before} below {what} = {self.at}, {self.after} from there"


def changes_along_procs(
    nest: Nest, procs: list[int], limit_words: int | None, accounting: Accounting = "received"
) -> list[Change]:
    """Where the regime changes as processes are added, to the process. `procs` ascending."""
    fixed = None if limit_words is None else limit_words * nest.word_bytes

    def at(p: int) -> Regime:
        return regime_of(universal_bound(nest, p, limit_words, accounting=accounting), nest)

    found = []
    for low, high in itertools.pairwise(procs):
        while at(low) != at(high):
            first = _first_change(at, low, high)
            found.append(Change("procs", first, at(low), at(first), fixed))
            low = first
    return found


def changes_along_memory(nest: Nest, procs: int, sizes: list[int]) -> list[Change]:
    """Where the regime changes as memory grows, to the byte of a word. `sizes` in bytes, ascending."""

    def at(words: int) -> Regime:
        return regime_of(universal_bound(nest, procs, words), nest)

    found = []
    words = [max(1, size // nest.word_bytes) for size in sizes]
    for low, high in itertools.pairwise(words):
        while at(low) != at(high):
            first = _first_change(at, low, high)
            found.append(Change("memory", first * nest.word_bytes, at(low), at(first), procs))
            low = first
    return found


def _first_change(at: Callable[[int], Regime], low: int, high: int) -> int:
    """A point in (low, high] whose regime differs from low's and from its predecessor's."""
    start = at(low)
    while high - low > 1:
        middle = (low + high) // 2
        if at(middle) == start:
            low = middle
        else:
            high = middle
    return high
