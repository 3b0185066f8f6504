"""Rows along one spatial dimension: what blocks read, carry and own, and what tiles read.

"Rows" are those of the framed tensor: of In, or of Out with a turned window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from synth.layer import interval_arrays as spans
from synth.layer.interval_arrays import Many, Spans
from synth.layer.window import Window
from synth.schedule.reread_rows import reached

EXACT = 4096  # blocks along a dimension up to which extremes are found by looking at every block
KINDS = 16  # kinds of blocks along a dimension that are distinguished


class BlockRows(NamedTuple):
    """Rows of one kind of block."""

    carried: int
    owned: int  # of the carried rows
    wanted: int  # rows that the block owns, counted once for every block that reads them
    room: int  # from the first to the last row that the block owns or carries


@dataclass(frozen=True)
class HaloRows:
    """Rows along one spatial dimension over all blocks and their shards.

    kinds: the kinds of blocks that matter for the most words in flight. room: as of `BlockRows`, at most.
    inside: whether every block carries all rows that it owns. padded: carried, with the zeros around.
    """

    carried: int  # at most
    owned: int  # of the carried rows, at least
    moves: bool
    kinds: tuple[BlockRows, ...]
    room: int
    inside: bool
    padded: int


@cache
def halo_rows(window: Window, out: int, parts: int, members: int = 1, zeros: bool = False) -> HaloRows:
    """Rows that blocks carry beyond the rows they own; `members` share the rows of each block.

    zeros: rooms keep the zeros around what a block reads, except those that a kernel adds by itself.
    """
    if parts * members > EXACT:
        ends = window.padding + window.trailing if zeros else 0
        widest, room = _reach_bound(window, -(-out // parts)), _room_bound(window, out, parts) + ends
        kind = BlockRows(widest, 0, _wanted_bound(window, out, parts, members), room)
        return HaloRows(widest, 0, True, (kind,), room, False, widest + ends)
    zero = np.zeros(parts, np.int64)
    blocks = spans.cut((zero, zero + out), parts, np.arange(parts))
    reaches = reached(window, blocks)
    block, part = np.divmod(np.arange(parts * members), members)
    line = spans.cut((np.zeros_like(block), np.full_like(block, window.size)), parts, block)
    own = spans.cut(line, members, part)
    carried = spans.widened(own, (reaches[0][block], reaches[1][block]), members, part)
    owned = spans.lengths(spans.meet(carried, own))
    wanted = spans.covered(reaches, own)
    around = _zeros(window, blocks, reaches)[block] if zeros else np.zeros_like(block)
    rooms = spans.lengths(spans.hull(own, carried)) + around
    rows = np.stack([spans.lengths(carried), owned, wanted, rooms], axis=1)
    moves = bool((np.array(carried) != np.array(own)).any())
    inside = bool((owned == spans.lengths(own)).all())
    padded = int((rows[:, 0] + around).max())
    most, least, room = int(rows[:, 0].max()), int(owned.min()), int(rooms.max())
    return HaloRows(most, least, moves, _pareto_front(rows), room, inside, padded)


def _zeros(window: Window, blocks: Spans, reaches: Spans) -> Many:
    """Rows of zeros around what each block reads; 0 if it reads nothing, or a kernel adds them itself."""
    (low, high), (first, last) = blocks, reaches
    before = first - (window.stride * low - window.padding)
    after = window.stride * (high - 1) + window.span - window.padding - last
    plain = (before >= after) & (before - after < window.stride)
    return np.where(plain | (first == last), 0, before + after)


def _pareto_front(rows: Many) -> tuple[BlockRows, ...]:
    """The kinds of blocks that no other kind dominates: fewer owned rows, or more of any other number.

    If there are many, one kind that dominates all of them.
    """
    found: list[tuple[int, int, int, int]] = []
    for carried, owned, wanted, room in sorted({(c, -k, w, r) for c, k, w, r in rows.tolist()}, reverse=True):
        if not any(owned <= k and wanted <= w and room <= r for _, k, w, r in found):
            found.append((carried, owned, wanted, room))
        if len(found) > KINDS:
            carried, _, wanted, room = map(int, rows.max(axis=0))
            return (BlockRows(carried, int(rows[:, 1].min()), wanted, room),)
    return tuple(BlockRows(carried, -owned, wanted, room) for carried, owned, wanted, room in found)


def _room_bound(window: Window, out: int, parts: int) -> int:
    """Upper bound on the room of any block: what it reads, and how far its own rows are from that."""
    line, widest = -(-window.size // parts), _reach_bound(window, -(-out // parts))
    apart = window.stride * out - window.divisor * window.size
    if window.divisor > 1:
        return min(window.size, widest + line + abs(apart) + abs(window.padding) + 2 * window.stride + 2)
    before = max(0, apart) + window.stride - window.padding + 1
    after = max(0, -apart) + 2 * window.stride + window.padding - window.span + 1
    return min(window.size, max(line, widest + max(0, before) + max(0, after)))


def _wanted_bound(window: Window, out: int, parts: int, members: int) -> int:
    """Upper bound on owned rows, each counted for every block that reads it.

    Two neighbouring blocks share at most as many rows as a window is longer than the stride.
    """
    line, both = -(-window.size // parts), window.most_overlap
    own = -(-line // members)
    ends = -(-(own + both + window.divisor - 1) * window.divisor // (window.stride * (out // parts)))
    return own + min(own, both) * min(ends, parts - 1)


def plainly_padded(window: Window, extent: int, parts: int, tiles: int) -> bool:
    """Whether the `padding=` argument of the local kernel can express the padding of every tile."""
    return window.plain(0, extent) if parts * tiles == 1 else window.padding == window.trailing == 0


class PaddedRows(NamedTuple):
    """Rows of In of tiles along one dimension, with the zeros that torch's `padding=` cannot add.

    most: of any tile. copied: of a tile with such zeros, which are in a copy; 0 if no tile has any.
    """

    most: int
    copied: int


@cache
def padded_rows(window: Window, turned: bool, out: int, parts: int, tiles: int) -> PaddedRows:
    """The most rows of In that a local kernel is given for any tile of any block, see `Nest.padded_words`.

    turned: `out` counts input rows, and the zeros are those that their output rows see.
    """
    layer = window.turned if turned else window
    if parts * tiles > EXACT:
        block = -(-out // parts)
        block = -(-block // tiles)
        frame = layer.frame(_reach_bound(window, block) if turned else block)
        plain = not turned and plainly_padded(window, out, parts, tiles)
        return PaddedRows(frame, 0 if plain else frame)
    own = _tiles(out, parts, tiles)
    reach = reached(window, own)
    read, made = (own, reach) if turned else (reach, own)
    count = spans.lengths(made)
    before = read[0] - (layer.stride * made[0] - layer.padding)
    after = layer.stride * (count - 1) + layer.span - before - spans.lengths(read)
    plain = (before >= 0) & (before >= after) & (before - after < layer.stride)
    rows = np.where(count > 0, spans.lengths(read) + np.where(plain, 0, before + after), 0)
    return PaddedRows(int(rows.max()), int(np.where(plain, 0, rows).max()))


@cache
def tile_rows(window: Window, out: int, parts: int, tiles: int) -> int:
    """The most rows that any tile of any block reads."""
    if parts * tiles > EXACT:
        block = -(-out // parts)
        return _reach_bound(window, -(-block // tiles))
    return int(rows_by_tile(window, out, parts, tiles).max())


def rows_by_tile(window: Window, out: int, parts: int, tiles: int) -> Many:
    """Rows that each tile of each block reads."""
    return spans.lengths(reached(window, _tiles(out, parts, tiles)))


def _tiles(out: int, parts: int, tiles: int) -> Spans:
    """The positions of each tile of each block."""
    zero, block, tile = np.zeros((parts, 1), np.int64), np.arange(parts)[:, None], np.arange(tiles)
    line = spans.cut((zero, zero + out), parts, block)
    return spans.cut(line, tiles, tile)


def _reach_bound(window: Window, rows: int) -> int:
    return min(window.size, window.frame(rows))
