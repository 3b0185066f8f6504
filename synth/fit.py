"""The best tiling of one distribution: which tensor stays, how many panels, inner tiles if need be.

Without inner tiles nothing is brought in twice, so the words do not depend on the panels (but for halo
rows that two panels along h share); panels then are few, for latency, and more when memory is short.
Inner tiles cost reloads and are considered only where no panel count fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from synth.axes import SPATIAL, PerAxis, Tensor
from synth.distribution import Distribution
from synth.memory import Footprints, tile_rows
from synth.nest import Window
from synth.tiling import COMPOSITE, ONES, Tiling
from synth.words import received

PANELS = 4  # panels wanted for overlap, where memory does not ask for more
THINNEST = 16  # channels below which a panel feeds the local kernel badly


FORWARD = Tiling()


@dataclass(frozen=True)
class Fit:
    """A tiling per pass, what the most-receiving process receives and the memory needed (both in words)."""

    tilings: tuple[Tiling, ...]
    words: int
    memory: int

    @property
    def tiling(self) -> Tiling:
        """The tiling of the first, or only, pass."""
        return self.tilings[0]


@cache
def tile_counts(extent: int) -> tuple[int, ...]:
    """Tile counts that give different tile sizes, ascending: 1, 2, ..., extent without repetitions."""
    few = range(1, min(extent, math.isqrt(extent) + 1) + 1)  # a count or its tile is at most the last
    sizes = {*few, *(-(-extent // n) for n in few)}
    return tuple(sorted({-(-extent // size) for size in sizes}))


def fit(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit: int | None,
    role: Tiling = FORWARD,
) -> tuple[Fit | None, int]:
    """The tiling with the fewest words within `limit` words of memory, and the least memory any tiling needs.

    Without a limit the least memory is not looked for, and 0.

    `role` says which pass, and which tensors are kept. Ties go to fewer steps (beyond `PANELS`), then to
    the order of `stationary`.
    """
    fitter = _Fitter(distribution, limit, role)
    found: list[tuple[int, int, int, Fit]] = []
    least = {tensor: 0 if limit is None else fitter.least(tensor) for tensor in stationary}
    for order, tensor in enumerate(stationary):
        if limit is not None and least[tensor] > limit:
            continue
        for tiling in fitter.tilings(tensor):
            words, memory = fitter.words(tiling), fitter.footprints.memory(tiling).words
            found.append((words, max(tiling.steps, PANELS), order, Fit((tiling,), words, memory)))
    best = min(found, key=lambda each: each[:3])[3] if found else None
    return best, min(least.values())


class _Fitter:
    def __init__(self, distribution: Distribution, limit: int | None, role: Tiling) -> None:
        self.distribution, self.limit, self.role = distribution, limit, role
        self.footprints = Footprints(distribution)
        self.work = distribution.most_work
        self._words: dict[tuple[int, ...], int] = {}

    def fits(self, tiling: Tiling) -> bool:
        """Whether a tiling stays within the memory limit."""
        return self.limit is None or self.footprints.memory(tiling).words <= self.limit

    def words(self, tiling: Tiling) -> int:
        """Most words any process receives; tilings that visit the same tiles as often share the count."""
        rows = () if tiling.whole("In") else tuple(getattr(tiling.counts, axis) for axis in SPATIAL)
        key = (tiling.loads("In"), tiling.loads("Ker"), tiling.loads("Out"), *rows)
        if key not in self._words:
            self._words[key] = int(received(self.distribution, tiling).total.max())
        return self._words[key]

    def tilings(self, tensor: Tensor) -> Iterator[Tiling]:
        """The tilings worth comparing for one stationary tensor: the coarsest that fit, level by level."""
        plain = self._first(self._tiling(tensor, counts) for counts in self._streams(tensor))
        if plain:
            yield plain
        if plain and self.words(plain) == self.words(self._tiling(tensor)):
            return
        stream, *inner = Tiling(tensor).order
        thinnest = self._counts(stream)[-1]
        for tiled, other in (inner, inner[::-1]):
            finer = (_merge(thinnest, each) for each in self._counts(tiled))
            held = self._first(self._tiling(tensor, counts) for counts in finer)
            if held:
                yield self._coarsened(held, tiled)
                continue
            yield from self._both(tensor, thinnest, other, tiled)

    def _coarsened(self, held: Tiling, *inner: str) -> Tiling:
        """The same inner tiles with as few panels as fit."""
        axes = [axis for composite in inner for axis in COMPOSITE[composite]]
        kept = PerAxis(**{axis: getattr(held.counts, axis) for axis in axes})
        options = (_merge(kept, stream) for stream in self._counts(held.stream))
        return self._first(replace(held, counts=counts) for counts in options) or held

    def _both(self, tensor: Tensor, thinnest: PerAxis, outer: str, inner: str) -> Iterator[Tiling]:
        """Both inner composites tiled: for each outer count the coarsest inner tiles that fit."""
        swapped = Tiling(tensor).order[1] != outer
        for first in self._counts(outer)[1:]:
            options = (_merge(_merge(thinnest, first), second) for second in self._counts(inner))
            found = self._first(self._tiling(tensor, counts, swapped) for counts in options)
            if found:
                yield self._coarsened(found, outer, inner)

    def least(self, tensor: Tensor) -> int:
        """The least memory any tiling of this stationary tensor needs: everything in unit tiles."""
        units = self.work.with_("g", 1)
        thin = [units, self._counts(Tiling(tensor).stream)[-1], PerAxis()]
        return min(self.footprints.memory(self._tiling(tensor, counts)).words for counts in thin)

    def _tiling(self, tensor: Tensor, counts: PerAxis = ONES, swapped: bool = False) -> Tiling:
        return replace(self.role, stationary=tensor, counts=counts, swapped=swapped)

    def _first(self, tilings: Iterable[Tiling]) -> Tiling | None:
        return next((tiling for tiling in tilings if self.fits(tiling)), None)

    def _streams(self, tensor: Tensor) -> Iterator[PerAxis]:
        """Panel counts to try, the wanted one first, then finer ones."""
        stream = Tiling(tensor).stream
        streaming = Tiling(tensor).streaming
        wanted = PANELS if any(self.distribution.group_size(t) > 1 for t in streaming) else 1
        if stream == "x":
            wanted = min(wanted, self.work.b)
            yield PerAxis(b=wanted)
            yield from (n for n in self._counts("x") if n.b >= wanted or n.b == self.work.b)
            return
        extent = getattr(self.work, stream)
        wanted = min(wanted, max(1, extent // THINNEST))
        yield from (n for n in self._counts(stream) if getattr(n, stream) >= wanted)

    def _counts(self, composite: str) -> list[PerAxis]:
        """Tile counts of a composite index, coarsest first."""
        if composite != "x":
            return [PerAxis(**{composite: n}) for n in tile_counts(getattr(self.work, composite))]
        nest = self.distribution.nest
        spatial = tuple(
            (nest.windows[a], getattr(nest.extents, a), getattr(self.distribution.grid, a)) for a in SPATIAL
        )
        return [PerAxis(b=b, d=d, h=h, w=w) for b, d, h, w in x_counts(self.work.b, spatial)]


@cache
def x_counts(samples: int, spatial: tuple[tuple[Window, int, int], ...]) -> tuple[tuple[int, ...], ...]:
    """Tile counts (b, d, h, w) of a block, fewest rows read first; only those that buy smaller tiles.

    `spatial` holds (window, extent, parts) per spatial axis. A count is left out when another one reads no
    more rows in all and has tiles that are no larger.
    """
    blocks = [-(-extent // parts) for _, extent, parts in spatial]
    kept: list[tuple[int, int, int, int, tuple[int, ...]]] = []
    for counts in product(tile_counts(samples), *(tile_counts(block) for block in blocks)):
        each = list(zip(spatial, blocks, counts[1:], strict=True))
        read = samples * math.prod(_rows_read(window, block, n) for (window, _, _), block, n in each)
        batch = -(-samples // counts[0])
        rows = batch * math.prod(tile_rows(*space, n) for space, _, n in each)
        out = batch * math.prod(-(-block // n) for _, block, n in each)
        kept.append((read, math.prod(counts), rows, out, counts))
    kept.sort()
    best: list[tuple[int, int]] = []
    result = []
    for _, _, rows, out, counts in kept:
        if not any(r <= rows and o <= out for r, o in best):
            best = [(r, o) for r, o in best if not (rows <= r and out <= o)] + [(rows, out)]
            result.append(counts)
    return tuple(result)


def _rows_read(window: Window, block: int, tiles: int) -> int:
    """Rows that the tiles of an inner block read, rows read by two tiles counted twice."""
    size, longer = divmod(block, tiles)
    return longer * window.frame(size + 1) + (tiles - longer) * window.frame(size)


def _merge(one: PerAxis, other: PerAxis) -> PerAxis:
    return PerAxis(*(a * b for a, b in zip(one, other, strict=True)))
