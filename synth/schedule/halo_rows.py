"""Rows along one spatial dimension: what blocks read, carry and own, and what tiles read.

"Rows" are those of the framed tensor: of In, or of Out with a turned window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from synth.layer import interval_arrays as spans
from synth.layer.interval_arrays import Many
from synth.layer.intervals import cut, length
from synth.layer.window import Window
from synth.schedule.reread_rows import reached

EXACT = 4096  # blocks along a dimension up to which extremes are found by looking at every block
KINDS = 16  # kinds of blocks along a dimension that are distinguished


class BlockRows(NamedTuple):
    """Rows of one kind of block."""

    carried: int
    owned: int  # of the carried rows
    wanted: int  # rows that the block owns, counted once for every block that reads them


@dataclass(frozen=True)
class HaloRows:
    """Rows along one spatial dimension over all blocks and their shards.

    kinds: the kinds of blocks that matter for the most words in flight.
    """

    carried: int  # at most
    owned: int  # of the carried rows, at least
    moves: bool
    kinds: tuple[BlockRows, ...]


@cache
def halo_rows(window: Window, out: int, parts: int, members: int = 1) -> HaloRows:
    """Rows that blocks carry beyond the rows they own; `members` share the rows of each block."""
    if parts * members > EXACT:
        widest = _reach_bound(window, -(-out // parts))
        return HaloRows(widest, 0, True, (BlockRows(widest, 0, _wanted_bound(window, out, parts, members)),))
    zero = np.zeros(parts, np.int64)
    reaches = reached(window, spans.cut((zero, zero + out), parts, np.arange(parts)))
    block, part = np.divmod(np.arange(parts * members), members)
    line = spans.cut((np.zeros_like(block), np.full_like(block, window.size)), parts, block)
    own = spans.cut(line, members, part)
    carried = spans.widened(own, (reaches[0][block], reaches[1][block]), members, part)
    owned = spans.lengths(spans.meet(carried, own))
    wanted = spans.covered(reaches, own)
    rows = np.stack([spans.lengths(carried), owned, wanted], axis=1)
    moves = bool((np.array(carried) != np.array(own)).any())
    return HaloRows(int(rows[:, 0].max()), int(owned.min()), moves, _pareto_front(rows))


def _pareto_front(rows: Many) -> tuple[BlockRows, ...]:
    """The kinds of blocks that no other kind dominates: more carried, fewer owned or more wanted rows.

    If there are many, one kind that dominates all of them.
    """
    found: list[tuple[int, int, int]] = []
    for carried, owned, wanted in sorted({(c, -k, w) for c, k, w in rows.tolist()}, reverse=True):
        if not any(owned <= k and wanted <= w for _, k, w in found):
            found.append((carried, owned, wanted))
        if len(found) > KINDS:
            return (BlockRows(int(rows[:, 0].max()), int(rows[:, 1].min()), int(rows[:, 2].max())),)
    return tuple(BlockRows(carried, -owned, wanted) for carried, owned, wanted in found)


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


@cache
def tile_rows(window: Window, out: int, parts: int, tiles: int) -> int:
    """The most rows that any tile of any block reads."""
    if parts * tiles > EXACT:
        block = -(-out // parts)
        return _reach_bound(window, -(-block // tiles))
    blocks = (cut((0, out), parts, i) for i in range(parts))
    return max(length(window.reach(*cut(block, tiles, j))) for block in blocks for j in range(tiles))


def _reach_bound(window: Window, rows: int) -> int:
    return min(window.size, window.frame(rows))
