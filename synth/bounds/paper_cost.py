"""The cost models of SPAA'21, Eq. 3, 10 and 11, and their exact integer optima.

The expressions are derived from `nest.Access` for integers and for sympy symbols. A test compares them
with the printed ones. Eq. 3 counts accessed words in a global virtual memory. Eq. 10 counts every first
touch and every broadcast word of the distributed algorithm. Neither counts the received words of a plan.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from synth.base.arithmetic import divisors
from synth.base.errors import InfeasibleError, UsageError
from synth.layer.axes import AXES, TENSORS, Axis, PerAxis, Tensor
from synth.layer.nest import Access, Nest, Scalar, accessed_words

# stationary tensor -> tile loops, outermost first; its lacking index is innermost
ORDER: dict[Tensor, tuple[Axis, ...]] = {
    "Out": ("g", "k", "b", "d", "h", "w", "c"),
    "Ker": ("g", "k", "c", "b", "d", "h", "w"),
    "In": ("g", "b", "d", "h", "w", "c", "k"),
}

Accesses = Mapping[Tensor, Access]
Sizes = Mapping[str, Scalar]  # loop index -> extent, kernel indices included


def accessed_cost(accesses: Accesses, stationary: Tensor, block: Sizes, tile: Sizes) -> Scalar:
    """Eq. 3: accessed words of one process that runs its `block` tile by tile. Ints or symbols."""
    return sum(accessed_words(accesses, ORDER[stationary], block, tile).values())


def tile_words(accesses: Accesses, tile: Sizes) -> Scalar:
    """g of Eq. 3: words of the three tiles. Ints or symbols."""
    return sum(access.footprint(tile) for access in accesses.values())


def owned_words(accesses: Accesses, extents: Sizes, procs: Scalar, stationary: Tensor) -> Scalar:
    """Words that a process owns of the streamed tensors: (|In| + |Ker|)/P with Out stationary."""
    return sum(a.footprint(extents) for t, a in accesses.items() if t != stationary) / procs


def distributed_cost(
    accesses: Accesses, stationary: Tensor, extents: Sizes, procs: Scalar, block: Sizes, tile: Sizes
) -> Scalar:
    """Eq. 10: cost_D = cost_I + cost_C in words. Ints or symbols.

    cost_I is the footprint of the initial distribution, and cost_C the broadcasts. Their sum is Eq. 3 plus
    the owned words of the streamed tensors. The paper states Eq. 10 for Out stationary.
    """
    return accessed_cost(accesses, stationary, block, tile) + owned_words(
        accesses, extents, procs, stationary
    )


def distributed_memory(
    accesses: Accesses, stationary: Tensor, extents: Sizes, procs: Scalar, block: Sizes, tile: Sizes
) -> Scalar:
    """Eq. 11: g_D, the words of the stationary slice, the owned shards and the streamed tiles.

    The paper says that g_D - g is a constant, but it contains the stationary slice less its tile.
    """
    streamed = sum(access.footprint(tile) for t, access in accesses.items() if t != stationary)
    own = owned_words(accesses, extents, procs, stationary)
    return streamed + accesses[stationary].footprint(block) + own


@dataclass(frozen=True)
class PaperOptimum:
    """The integer optimum of Eq. 3 or Eq. 10. `cost` is in words of the most loaded process."""

    cost: Fraction
    stationary: Tensor
    grid: PerAxis
    work: PerAxis
    tile: PerAxis
    used_words: Fraction  # of memory, Eq. 3's g or Eq. 11's g_D

    def __str__(self) -> str:
        return (
            f"{float(self.cost):.10g} words, {self.stationary} stationary, grid {self.grid.shown()}, "
            f"tile {self.tile.shown()}, {float(self.used_words):.10g} words of memory"
        )


def cost_at(
    nest: Nest, stationary: Tensor, grid: PerAxis, tile: PerAxis, distributed: bool = False
) -> Fraction:
    """The exact value of Eq. 3 (`distributed`: Eq. 10) in words of the most loaded process, block ⌈N/P⌉."""
    block = _fractions(nest, nest.extents.blocks(grid))
    if not distributed:
        return Fraction(accessed_cost(nest.accesses, stationary, block, _fractions(nest, tile)))
    whole = _fractions(nest, nest.extents)
    return Fraction(
        distributed_cost(nest.accesses, stationary, whole, grid.size, block, _fractions(nest, tile))
    )


def memory_at(
    nest: Nest, stationary: Tensor, grid: PerAxis, tile: PerAxis, distributed: bool = False
) -> Fraction:
    """The exact value of g in Eq. 3 (`distributed`: g_D in Eq. 11), in words."""
    sizes = _fractions(nest, tile)
    if not distributed:
        return Fraction(tile_words(nest.accesses, sizes))
    block, whole = _fractions(nest, nest.extents.blocks(grid)), _fractions(nest, nest.extents)
    return Fraction(distributed_memory(nest.accesses, stationary, whole, grid.size, block, sizes))


def _fractions(nest: Nest, sizes: PerAxis) -> dict[str, Fraction]:
    return {index: Fraction(extent) for index, extent in nest.loop_extents(sizes).items()}


def grids(nest: Nest, procs: int) -> Iterator[PerAxis]:
    """All ordered factorizations of `procs` over the axes with P_i <= N_i. P_i need not divide N_i."""

    def factorizations(position: int, product: int) -> Iterator[tuple[int, ...]]:
        if position == len(AXES) - 1:
            if product <= nest.extents[position]:
                yield (product,)
            return
        for divisor in divisors(product):
            if divisor <= nest.extents[position]:
                yield from ((divisor, *tail) for tail in factorizations(position + 1, product // divisor))

    return (PerAxis(*grid) for grid in factorizations(0, procs))


class _Search(NamedTuple):
    """The fixed parameters of a search. `limit_words` is infinite for unlimited memory."""

    nest: Nest
    limit_words: float
    distributed: bool
    tensors: tuple[Tensor, ...]


def accessed_optimum(
    nest: Nest, procs: int, limit_words: float | None = None, stationary: Tensor | None = None
) -> PaperOptimum:
    """The exact integer optimum of Eq. 3 over grids, tiles and stationary tensors.

    Grids are the ordered factorizations of `procs` with P_i <= N_i. The block is ⌈N/P⌉, that of the most
    loaded process, and tiles divide it. Footprints are σ(T-1)+δ(N-1)+1 and include padding. The three
    tiles must fit `limit_words`. Raises `InfeasibleError` if no tile fits, with the least memory that is
    enough, or if no grid has `procs` processes, and `UsageError` if `procs` < 1.
    """
    tensors = TENSORS[::-1] if stationary is None else (stationary,)
    return _optimum(_Search(nest, math.inf if limit_words is None else limit_words, False, tensors), procs)


def distributed_optimum(nest: Nest, procs: int, limit_words: float | None = None) -> PaperOptimum:
    """The exact integer optimum of Eq. 10 under the memory limit of Eq. 11, Out stationary as in the paper.

    Grids, tiles and errors are those of `accessed_optimum`. `limit_words` is M_D, all words of a process.
    """
    return _optimum(_Search(nest, math.inf if limit_words is None else limit_words, True, ("Out",)), procs)


def _optimum(search: _Search, procs: int) -> PaperOptimum:
    if procs < 1:
        raise UsageError(f"A grid needs at least 1 process, not {procs}.")
    nest = search.nest
    every = [(i, t, grid) for grid in grids(nest, procs) for i, t in enumerate(search.tensors)]
    if not every:
        raise InfeasibleError(
            f"{procs} processes do not factor into a grid with at most N_i along each of {nest}; "
            f"choose a number of processes with smaller prime factors."
        )
    ranked = sorted((_floor(search, t, grid), i, grid, t) for i, t, grid in every)
    best: tuple[int, Tensor, PerAxis, PerAxis] | None = None
    for floor, _, grid, stationary in ranked:
        if best is not None and floor >= best[0]:
            break
        found = _best_tile(search, stationary, grid)
        if found is not None and (best is None or found[0] < best[0]):
            best = (found[0], stationary, grid, found[1])
    if best is None:
        least = min(memory_at(nest, t, grid, PerAxis(), search.distributed) for _, _, grid, t in ranked)
        raise InfeasibleError(
            f"No integer tile fits {search.limit_words:g} words on {procs} processes; "
            f"allow at least {math.ceil(least)}."
        )
    _, stationary, grid, tile = best
    plan = (nest, stationary, grid, tile, search.distributed)
    return PaperOptimum(cost_at(*plan), stationary, grid, nest.extents.blocks(grid), tile, memory_at(*plan))


def _cost(nest: Nest, stationary: Tensor, work: PerAxis, tile: PerAxis) -> int:
    """`accessed_cost` of tiles that divide the block, in integer arithmetic."""
    trips: dict[str, int] = {a: n // t for a, n, t in zip(AXES, work, tile, strict=True)}
    sizes = nest.loop_extents(tile)
    order = ORDER[stationary]
    return int(sum(a.footprint(sizes) * a.loads(order, trips) for a in nest.accesses.values()))


def _floor(search: _Search, stationary: Tensor, grid: PerAxis) -> float:
    """Lower bound of Eq. 3 over all tiles of a grid, in words.

    Every slice is accessed once, and with a memory limit the streamed tensors cost at least Eq. 4's 2AK/√M.
    """
    nest = search.nest
    work = nest.extents.blocks(grid)
    floor = _cost(nest, stationary, work, work)
    if math.isinf(search.limit_words) or not _dense(nest):
        return floor
    # the stationary tile s·Ta·Tb is at most M, and a/Ta + b/Tb >= 2·√(ab/(Ta·Tb))
    slice_words = int(nest.accesses[stationary].footprint(nest.loop_extents(work)))
    streamed = 2 * work.size * math.sqrt(nest.taps * nest.strides / search.limit_words)
    return max(floor, (slice_words + streamed) * (1 - 1e-12))


def _dense(nest: Nest) -> bool:
    """Whether every footprint is at least σT. Eq. 4 then bounds Eq. 3."""
    return all(w.span >= w.stride for w in nest.windows.values())


def _best_tile(search: _Search, stationary: Tensor, grid: PerAxis) -> tuple[int, PerAxis] | None:
    """(Eq. 3 in words, tile) of the cheapest tile of a grid, or None if no tile fits.

    A longer tile along g, or along the stationary tensor's lacking index, saves nothing (except for halos
    along d, h, w). A longer Tk (Tc if In is stationary) only lowers the cost, so the search takes the
    longest that fits. Memory is linear in it.
    """
    nest = search.nest
    work = nest.extents.blocks(grid)
    last: Axis = "c" if stationary == "In" else "k"
    single = {"Out": ("g", "c"), "Ker": ("g", "b"), "In": ("g", "k")}[stationary]
    middle = [a for a in AXES if a not in single and a != last]
    lengths = divisors(getattr(work, last))
    available = search.limit_words
    if search.distributed:  # g_D - g depends only on the grid, apart from the stationary tile
        available -= float(memory_at(nest, stationary, grid, PerAxis(), True))
        available += sum(
            a.footprint(nest.loop_extents(PerAxis())) for t, a in nest.accesses.items() if t != stationary
        )
    counted = [a for t, a in nest.accesses.items() if not (search.distributed and t == stationary)]
    best: tuple[int, PerAxis] | None = None
    for sizes in itertools.product(*(divisors(getattr(work, a)) for a in middle)):
        tile = PerAxis(**dict(zip(middle, sizes, strict=True)))
        fixed = sum(a.footprint(nest.loop_extents(tile.with_(last, 0))) for a in counted)
        each = sum(a.footprint(nest.loop_extents(tile)) for a in counted) - fixed
        fits = bisect.bisect_right(lengths, (available - fixed) / each)
        if fits == 0:
            continue
        tile = tile.with_(last, lengths[fits - 1])
        cost = _cost(nest, stationary, work, tile)
        if best is None or cost < best[0]:
            best = (cost, tile)
    return best
