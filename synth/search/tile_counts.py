"""Tile counts that are worth trying: of one axis, and of the composite index x = (b, d, h, w).

Of a short axis every count that gives another tile size is tried. Where that would be too many, some are,
evenly in ratio; `fit` then coarsens the best plan to the fewest tiles that still fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from synth.layer.intervals import cuts, length
from synth.layer.window import Window
from synth.schedule.halo_rows import EXACT, plainly_padded, tile_rows

SHORT = 8  # rows of a block up to which every tile count is tried
FEW = 64  # ways to tile x up to which none is left out by an estimate of its rows
LONG = 2**20  # extents up to which every tile count is tried
WAYS = 2**16  # ways to tile x that are looked at
KEPT = 512  # and that are kept, at most

Space = tuple[Window, int, int]  # window, extent and parts of a spatial axis


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


def thinned(counts: Sequence[int], most: int) -> list[int]:
    """At most `most` >= 2 of ascending counts, evenly in ratio, the first and the last among them."""
    if len(counts) <= most:
        return list(counts)
    ratio = (counts[-1] / counts[0]) ** (1 / (most - 1))
    kept = [counts[0]]
    for count in counts[1:-1]:
        if count >= kept[-1] * ratio:
            kept.append(count)
    return [*kept, counts[-1]]


class Way(NamedTuple):
    """One axis of a block in tiles: rows read by all tiles, and of the largest tile what it holds."""

    tiles: int
    read: int  # rows that the tiles of all blocks read, together
    rows: int  # rows of In
    size: int  # positions
    frame: int  # rows of In with the padding zeros
    plain: bool  # whether the local kernel pads by itself


@cache
def x_counts(samples: int, spatial: tuple[Space, ...]) -> tuple[tuple[int, ...], ...]:
    """Tile counts (b, d, h, w) of a block, fewest rows read first; only those that buy smaller tiles.

    A count is left out when another one reads no more rows in all and has tiles that are no larger.
    """
    lists = [tile_counts(samples), *(_all_counts(-(-extent // parts)) for _, extent, parts in spatial)]
    while math.prod(map(len, lists)) > WAYS:
        longest = max(range(len(lists)), key=lambda i: len(lists[i]))
        lists[longest] = thinned(lists[longest], len(lists[longest]) * 3 // 4)
    batches = [_batch(samples, count) for count in lists[0]]
    ways = [
        [_way(space, count) for count in counts] for space, counts in zip(spatial, lists[1:], strict=True)
    ]
    candidates = sorted(_candidate(chosen) for chosen in product(batches, *ways))
    if len(candidates) <= FEW:
        return tuple(counts for *_, counts in candidates)
    result = [counts for *_, counts in _undominated(candidates)]
    stride = -(-len(result) // KEPT)
    return tuple(result[::stride] if (len(result) - 1) % stride == 0 else [*result[::stride], result[-1]])


Candidate = tuple[int, int, tuple[int, int, int], tuple[int, ...]]  # rows read, tiles, sizes, counts


def _candidate(ways: tuple[Way, ...]) -> Candidate:
    read = tiles = rows = size = frame = 1
    plain = True
    for way in ways:
        read, tiles, rows, size = read * way.read, tiles * way.tiles, rows * way.rows, size * way.size
        frame, plain = frame * way.frame, plain and way.plain
    return read, tiles, (rows, size, 0 if plain else frame), tuple(way.tiles for way in ways)


def _undominated(candidates: list[Candidate]) -> list[Candidate]:
    """Those than which no earlier one has tiles that are no larger; the last culprit is looked at first."""
    kept: list[tuple[int, int, int]] = []
    result = []
    for each in candidates:
        rows, size, frame = each[2]
        for place, known in enumerate(kept):
            if known[0] <= rows and known[1] <= size and known[2] <= frame:
                if place:
                    kept.insert(0, kept.pop(place))
                break
        else:
            kept.append(each[2])
            result.append(each)
    return result


def _batch(samples: int, count: int) -> Way:
    size = -(-samples // count)
    return Way(count, samples, size, size, size, True)


def _way(space: Space, count: int) -> Way:
    window, extent, parts = space
    block = -(-extent // parts)
    size = -(-block // count)
    read, rows = _rows_read(window, extent, parts, count), tile_rows(window, extent, parts, count)
    return Way(count, read, rows, size, window.frame(size), plainly_padded(window, extent, parts, count))


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
