"""Candidate tile counts of one axis and of the composite index x = (b, d, h, w).

Every count of a short axis that gives another tile size is a candidate. If these are too many, a subset in
a geometric progression remains. `tiling_search` then coarsens the best plan to the fewest tiles that fit.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from synth.layer.window import Window
from synth.schedule.halo_rows import EXACT, plainly_padded, rows_by_tile, tile_rows

SHORT = 8  # every tile count is a candidate up to this many rows of a block
FEW = 64  # up to this many tilings of x, dominated ones remain candidates
LONG = 2**20  # every tile size is a candidate up to this extent
WAYS = 2**16  # the most tilings of x to examine
KEPT = 512  # the most tilings of x to return
RECENT = 16  # sizes that dominated the last tilings

Space = tuple[Window, int, int]  # window, extent and parts of a spatial axis


@cache
def tile_counts(extent: int) -> tuple[int, ...]:
    """The ascending tile counts 1, 2, ..., extent, one for each tile size.

    For an extent above `LONG`, only powers of four and the extent.
    """
    if extent > LONG:
        return (*(4**i for i in range(extent.bit_length()) if 4**i < extent), extent)
    few = range(1, min(extent, math.isqrt(extent) + 1) + 1)  # a count or its tile is at most the last
    sizes = {*few, *(-(-extent // n) for n in few)}
    return tuple(sorted({-(-extent // size) for size in sizes}))


def count_from(extent: int, wanted: int) -> int:
    """The first tile count of an extent that is at least `wanted`, which is at most the extent."""
    if wanted == 1:
        return 1
    size = -(-extent // (wanted - 1)) - 1  # the largest tile size with at least `wanted` tiles
    return -(-extent // size)


def thinned(counts: Sequence[int], most: int) -> list[int]:
    """At most `most` >= 2 of the ascending counts, in about a geometric progression, with both ends."""
    if len(counts) <= most:
        return list(counts)
    ratio = (counts[-1] / counts[0]) ** (1 / (most - 1))
    chosen = [counts[0]]
    for count in counts[1:-1]:
        if count >= chosen[-1] * ratio:
            chosen.append(count)
    return [*chosen, counts[-1]]


class AxisTiling(NamedTuple):
    """A tiling of one axis of a block: the rows that its tiles read, and the sizes of the largest tile."""

    tiles: int
    read: int  # rows of In that the tiles of all blocks read, repetitions included
    rows: int  # rows of In of the largest tile, without padding
    size: int  # output positions of the largest tile
    frame: int  # rows of In of the largest tile, with padding
    plain: bool  # whether the local kernel pads by itself


@cache
def x_counts(samples: int, spatial: tuple[Space, ...]) -> tuple[tuple[int, ...], ...]:
    """Candidate tile counts (b, d, h, w) of a block, those that read the fewest rows first.

    A candidate is omitted if another one reads no more rows and has tiles that are no larger.
    """
    lists = [tile_counts(samples), *(_all_counts(-(-extent // parts)) for _, extent, parts in spatial)]
    while math.prod(map(len, lists)) > WAYS:
        longest = max(range(len(lists)), key=lambda i: len(lists[i]))
        lists[longest] = thinned(lists[longest], len(lists[longest]) * 3 // 4)
    batches = [_batch(samples, count) for count in lists[0]]
    tilings = [
        [_axis_tiling(space, count) for count in counts]
        for space, counts in zip(spatial, lists[1:], strict=True)
    ]
    candidates = sorted(_candidate(chosen) for chosen in product(batches, *tilings))
    if len(candidates) <= FEW:
        return tuple(counts for *_, counts in candidates)
    result = [counts for *_, counts in _undominated(candidates)]
    stride = -(-len(result) // KEPT)
    return tuple(result[::stride] if (len(result) - 1) % stride == 0 else [*result[::stride], result[-1]])


Candidate = tuple[int, int, tuple[int, int, int], tuple[int, ...]]  # rows read, tiles, sizes, counts


def _candidate(tilings: tuple[AxisTiling, ...]) -> Candidate:
    read = tiles = rows = size = frame = 1
    plain = True
    for each in tilings:
        read, tiles, rows, size = read * each.read, tiles * each.tiles, rows * each.rows, size * each.size
        frame, plain = frame * each.frame, plain and each.plain
    return read, tiles, (rows, size, 0 if plain else frame), tuple(each.tiles for each in tilings)


def _undominated(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates without those that an earlier one dominates: it has tiles that are no larger.

    The most recent dominating sizes are compared first, because they dominate most candidates. The others
    are found in logarithmic time.
    """
    order = {rows: place for place, rows in enumerate(sorted({each[2][0] for each in candidates}), 1)}
    stairs: list[tuple[list[int], list[int]]] = [([], []) for _ in range(len(order) + 1)]
    recent: list[tuple[int, int, int]] = []
    result = []
    for candidate in candidates:
        rows, size, frame = candidate[2]
        for position, other in enumerate(recent):
            if other[0] <= rows and other[1] <= size and other[2] <= frame:
                if position:
                    recent.insert(0, recent.pop(position))
                break
        else:
            recent = [candidate[2], *recent[: RECENT - 1]]
            if not _is_known(stairs, order[rows], size, frame):
                _add(stairs, order[rows], size, frame)
                result.append(candidate)
    return result


# Of sizes in prefix `place` of the ascending rows: a binary indexed tree (Fenwick 1994), each node of which
# has a staircase: sizes ascend, and frames descend.


def _is_known(stairs: list[tuple[list[int], list[int]]], place: int, size: int, frame: int) -> bool:
    """Whether sizes are known with no more rows, no larger size and no larger frame."""
    while place:
        sizes, frames = stairs[place]
        at = bisect_right(sizes, size)
        if at and frames[at - 1] <= frame:
            return True
        place -= place & -place
    return False


def _add(stairs: list[tuple[list[int], list[int]]], place: int, size: int, frame: int) -> None:
    while place < len(stairs):
        sizes, frames = stairs[place]
        at = bisect_right(sizes, size)
        if not at or frames[at - 1] > frame:
            begin = bisect_left(sizes, size)
            end = begin
            while end < len(sizes) and frames[end] >= frame:
                end += 1
            sizes[begin:end], frames[begin:end] = [size], [frame]
        place += place & -place


def _batch(samples: int, count: int) -> AxisTiling:
    size = -(-samples // count)
    return AxisTiling(count, samples, size, size, size, True)


def _axis_tiling(space: Space, count: int) -> AxisTiling:
    window, extent, parts = space
    block = -(-extent // parts)
    size = -(-block // count)
    return AxisTiling(
        tiles=count,
        read=_rows_read(window, extent, parts, count),
        rows=tile_rows(window, extent, parts, count),
        size=size,
        frame=window.frame(size),
        plain=plainly_padded(window, extent, parts, count),
    )


def _all_counts(block: int) -> Sequence[int]:
    """Every count of a short axis. The positions of the cuts decide how many rows tiles share."""
    return range(1, block + 1) if block <= SHORT else tile_counts(block)


@cache
def _rows_read(window: Window, extent: int, parts: int, tiles: int) -> int:
    """Rows that the tiles of all blocks read. A row that two tiles read counts twice.

    For more than `EXACT` tiles the result is an upper bound.
    """
    if parts * tiles > EXACT:
        block = -(-extent // parts)
        size, longer = divmod(block, tiles)
        return parts * (longer * window.frame(size + 1) + (tiles - longer) * window.frame(size))
    return int(rows_by_tile(window, extent, parts, tiles).sum())
