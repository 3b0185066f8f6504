"""The best tiling of one distribution: which tensor stays, how many panels, inner tiles if need be.

Without inner tiles nothing is brought in twice, so the words do not depend on the panels (but for halo
rows that two panels along h share); panels then are few, for latency, and more when memory is short. A
panel is worth its start-up only where enough words travel while the one before is used.
Inner tiles cost reloads and are considered only where no panel count fits.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from synth.axes import SPATIAL, PerAxis, Tensor
from synth.distribution import Distribution
from synth.intervals import cuts, length
from synth.memory import EXACT, Footprints, plainly_padded, tile_rows
from synth.nest import Window
from synth.tiling import ONES, Tiling
from synth.words import Visits, received

PANELS = 4  # panels wanted for overlap at most, where memory does not ask for more
PANEL_BYTES = 2**17  # that travel with each at least: some start-ups of a fast network (2 us, 10 GB/s)
SHORT = 8  # rows of a block up to which every tile count is tried
FEW = 64  # ways to tile x up to which none is left out by an estimate of its rows
LONG = 2**20  # extents up to which every tile count is tried
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
    """Tile counts that give different tile sizes, ascending: 1, 2, ..., extent without repetitions.

    Beyond `LONG`, powers of four and the extent only.
    """
    if extent > LONG:
        return (*(4**i for i in range(extent.bit_length()) if 4**i < extent), extent)
    few = range(1, min(extent, math.isqrt(extent) + 1) + 1)  # a count or its tile is at most the last
    sizes = {*few, *(-(-extent // n) for n in few)}
    return tuple(sorted({-(-extent // size) for size in sizes}))


def count_from(extent: int, wanted: int) -> int:
    """The first of the tile counts of an extent that is `wanted` or more; `wanted` is at most the extent."""
    if wanted == 1:
        return 1
    size = -(-extent // (wanted - 1)) - 1  # the largest tile that is cut into as many
    return -(-extent // size)


def fit(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit: int | None,
    role: Tiling = FORWARD,
    panels: int | None = None,
) -> tuple[Fit | None, int]:
    """The tiling with the fewest words within `limit` words of memory, and the least memory any tiling needs.

    Without a limit the least memory is not looked for, and 0.

    `role` says which pass, and which tensors are kept; `panels`, how many are wanted, by default as many as
    overlap pays for. Ties go to fewer steps (beyond those wanted), then to the order of `stationary`.
    """
    fitter = _Fitter(distribution, limit, role, panels)
    found: list[tuple[int, int, int, Fit]] = []
    least = {tensor: 0 if limit is None else fitter.least(tensor) for tensor in stationary}
    for order, tensor in enumerate(stationary):
        if limit is not None and least[tensor] > limit:
            continue
        for tiling in fitter.tilings(tensor):
            words, memory = fitter.words(tiling), fitter.footprints.memory(tiling).words
            found.append((words, max(tiling.steps, fitter.most), order, Fit((tiling,), words, memory)))
    best = min(found, key=lambda each: each[:3])[3] if found else None
    return best, min(least.values())


class _Fitter:
    def __init__(
        self, distribution: Distribution, limit: int | None, role: Tiling, panels: int | None
    ) -> None:
        self.distribution, self.limit, self.role, self.panels = distribution, limit, role, panels
        self.most = panels or PANELS
        self.footprints = Footprints(distribution)
        self.work = distribution.most_work
        self._words: dict[Visits, int] = {}

    def fits(self, tiling: Tiling) -> bool:
        """Whether a tiling stays within the memory limit."""
        return self.limit is None or self.footprints.memory(tiling).words <= self.limit

    def words(self, tiling: Tiling) -> int:
        """Most words any process receives; tilings that visit the same tiles as often share the count."""
        key = Visits.of(tiling)
        if key not in self._words:
            self._words[key] = received(self.distribution, tiling).most_with()
        return self._words[key]

    def tilings(self, tensor: Tensor) -> Iterator[Tiling]:
        """The tilings worth comparing for one stationary tensor, level by level of inner tiles.

        A level is left out when a coarser one moves no more words than the level could.
        """
        untiled = received(self.distribution, self._tiling(tensor))
        floor = untiled.most_with()
        fewest = 0
        for tiling in self._panels(tensor, ONES, floor):
            fewest = min(fewest or self.words(tiling), self.words(tiling))
            yield tiling
            if self.words(tiling) == floor and tiling.steps <= self.most:
                return
        first, second = (self._counts(composite)[1:] for composite in Tiling(tensor).order[1:])
        for inner in (*first, *second):
            for tiling in self._panels(tensor, inner, floor):
                fewest = min(fewest or self.words(tiling), self.words(tiling))
                yield tiling
        # with both inner loops, one of the streaming tensors is visited at least twice
        streaming = Tiling(tensor).streaming
        twice = min(untiled.most_with(tensor) for tensor in streaming)
        if 0 < fewest <= twice:
            return
        for one, two, swapped in product(first, second, (False, True)):
            yield from self._panels(tensor, _merge(one, two), twice, swapped)

    def _panels(self, tensor: Tensor, inner: PerAxis, enough: int, swapped: bool = False) -> Iterator[Tiling]:
        """The inner tiles with panel counts that fit, in the order of `_streams`.

        Along c and k the first one is as good as any; along x, where panels share rows, all are yielded
        until one moves no more than `enough` words.
        """
        coarse, fine = (
            [self._tiling(tensor, _merge(counts, inner), swapped) for counts in each]
            for each in self._streams(tensor)
        )
        if Tiling(tensor).stream == "x":
            for tiling in (*fine, *coarse):
                if self.fits(tiling):
                    yield tiling
                    if self.words(tiling) <= enough:
                        return
            return
        found = None
        if self.fits(fine[0]):
            found = fine[0]
        elif self.fits(fine[-1]):  # beyond one step, more panels never need more memory
            found = fine[bisect_left(fine, True, lo=1, key=self.fits)]
        found = found or self._first(coarse)
        if found:
            yield found

    def least(self, tensor: Tensor) -> int:
        """The least memory any tiling of this stationary tensor needs.

        Smaller tiles need less, but for two steps up: a second panel on its way as soon as there is a
        second step, and a padded copy as soon as a padded axis is tiled.
        """
        work = self.work
        thin = [PerAxis()]
        for d, h, w in product(*({1, getattr(work, axis)} for axis in SPATIAL)):
            thin.append(PerAxis(b=work.b, d=d, h=h, w=w, c=work.c, k=work.k))
        return min(self.footprints.memory(self._tiling(tensor, counts)).words for counts in thin)

    def _tiling(self, tensor: Tensor, counts: PerAxis = ONES, swapped: bool = False) -> Tiling:
        return replace(self.role, stationary=tensor, counts=counts, swapped=swapped)

    def _first(self, tilings: Iterable[Tiling]) -> Tiling | None:
        return next((tiling for tiling in tilings if self.fits(tiling)), None)

    def _streams(self, tensor: Tensor) -> tuple[list[PerAxis], list[PerAxis]]:
        """Panel counts: coarser than wanted, and from the wanted one on, which comes first."""
        stream = Tiling(tensor).stream
        wanted = self._wanted(tensor)
        if stream == "x":
            wanted = min(wanted, self.work.b)
            best = PerAxis(b=wanted)
            if self.limit is None:
                return [], [best]
            counts = self._counts("x")
            finer = [n for n in counts if n.b >= wanted or n.b == self.work.b]
            return [n for n in counts if n not in finer], [best, *finer]
        extent = getattr(self.work, stream)
        wanted = min(wanted, extent if self.panels else max(1, extent // THINNEST))
        if self.limit is None:
            return [], [PerAxis(**{stream: count_from(extent, wanted)})]
        counts = self._counts(stream)
        at = next(i for i, n in enumerate(counts) if getattr(n, stream) >= wanted)
        return counts[:at], counts[at:]

    def _wanted(self, tensor: Tensor) -> int:
        """Panels, if memory allows: one where nothing travels with them, or little."""
        if self.panels is not None:
            return self.panels
        tiling = self._tiling(tensor)
        travels = {*tiling.brought, *({tiling.written} - {tensor})}
        words = sum(self.footprints.slice(t) for t in travels if self.distribution.group_size(t) > 1)
        size = words * self.distribution.nest.word_bytes
        return max(1, min(PANELS, size // PANEL_BYTES))

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
    candidates = []
    for counts in product(tile_counts(samples), *(_all_counts(block) for block in blocks)):
        each = list(zip(spatial, blocks, counts[1:], strict=True))
        read = samples * math.prod(_rows_read(*space, n) for space, _, n in each)
        batch = -(-samples // counts[0])
        rows = batch * math.prod(tile_rows(*space, n) for space, _, n in each)
        out = batch * math.prod(-(-block // n) for _, block, n in each)
        plain = all(plainly_padded(*space, n) for space, _, n in each)
        frame = batch * math.prod(space[0].frame(-(-block // n)) for space, block, n in each)
        candidates.append((read, math.prod(counts), (rows, out, 0 if plain else frame), counts))
    if len(candidates) <= FEW:
        return tuple(counts for *_, counts in sorted(candidates))
    kept: list[tuple[int, int, int]] = []
    result = []
    for _, _, sizes, counts in sorted(candidates):
        if not any(all(k <= s for k, s in zip(known, sizes, strict=True)) for known in kept):
            kept.append(sizes)
            result.append(counts)
    return tuple(result)


def _all_counts(block: int) -> Sequence[int]:
    """Along a short axis every count: where the cuts fall decides how many rows tiles share at the border."""
    return range(1, block + 1) if block <= SHORT else tile_counts(block)


@cache
def _rows_read(window: Window, extent: int, parts: int, tiles: int) -> int:
    """Rows that the tiles of all blocks read, rows read by two tiles counted twice; from above for many."""
    if parts * tiles > EXACT:
        block = -(-extent // parts)
        size, longer = divmod(block, tiles)
        return parts * (longer * window.frame(size + 1) + (tiles - longer) * window.frame(size))
    blocks = cuts((0, extent), parts)
    return sum(length(window.reach(*tile)) for block in blocks for tile in cuts(block, tiles))


def _merge(one: PerAxis, other: PerAxis) -> PerAxis:
    return PerAxis(*(a * b for a, b in zip(one, other, strict=True)))
