"""The grids that a layer of a network may have.

The family is every grid of at most P processes that keeps the work balance: `space` says which counts an
axis admits, and what balance means. Where all P processes are asked for, it is the grids of exactly P, unless
there are none. In the objective `time` grids of exactly P need not be balanced: time weighs that itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.layer.axes import AXES, PerAxis
from synth.layer.nest import Nest
from synth.search.grids import Space, all_grids, work_cap

ROOM = 1 << 21  # grids that may be looked at together; where there are more, the balance is narrowed


def family(
    nest: Nest, procs: int, balance: float, exact: bool = False, uneven: bool = False, timed: bool = False
) -> list[PerAxis]:
    """The family of one layer, without grids whose channels are no single intervals.

    exact: all processes are used wherever a grid within the balance does.
    uneven: the balance is measured against the grids of exactly `procs` alone.
    timed: the objective is time.
    """
    full, free = (Space(nest, procs, {}, each) for each in (True, False))
    least = (full.least_work if uneven else None) or free.least_work or 1
    cap = work_cap(least, balance)
    grids = [g for g in all_grids(full, procs) if timed or largest_block(nest, g).size <= cap]
    if timed and not grids:
        grids = all_grids(free, procs)
    elif not (exact and grids):
        grids = list(dict.fromkeys([*grids, *balanced(free, cap)]))
    return [g for g in grids if _single_intervals(nest, g)] or grids


def balanced(space: Space, cap: int) -> list[PerAxis]:
    """All grids that load no process with more than `cap` iterations; near the least work where too many."""
    least = space.least_work
    if least is None:
        return []
    while True:
        rows = _within(space, cap)
        if rows is not None:
            return [PerAxis(*row) for row in rows.tolist()]
        cap = least + (cap - least) // 2


def _within(space: Space, cap: int) -> Any:
    """The counts of all grids within a cap, a row each, axis by axis; None where they are too many at once.

    A row is dropped when even an even cut of what is left, over all processes that are left, is too much.
    """
    rest = space.nest.extents.size
    whole: Any = np.int64 if max(rest << 7, cap) * space.procs < 2**62 else object
    rows, used, work = np.ones((1, 0), np.int64), np.ones(1, np.int64), np.ones(1, whole)
    for axis in AXES:
        rest //= getattr(space.nest.extents, axis)
        kept = []
        for parts in space.counts(axis):
            block = work * space.block(axis, parts)
            room = space.procs // (used * parts)
            fits = np.asarray((room > 0) & (block * rest <= cap * room) & (block <= cap), dtype=bool)
            index = np.flatnonzero(fits)
            kept.append((index, np.full(len(index), parts), block[index]))
        index, counts, work = (np.concatenate(each) for each in zip(*kept, strict=True))
        if len(index) > ROOM and cap > (space.least_work or 0):
            return None
        rows, used = np.column_stack([rows[index], counts]), used[index] * counts
    return rows


def _single_intervals(nest: Nest, grid: PerAxis) -> bool:
    """Whether groups are split as far as the channels within them need; see `Boxes.flat`."""
    n = nest.extents
    return n.g == 1 or grid.g == n.g or (grid.c == grid.k == 1) or (n.c == n.k == 1)


def largest_block(nest: Nest, grid: PerAxis) -> PerAxis:
    """W: the largest block, per axis."""
    return PerAxis(*(-(-n // p) for n, p in zip(nest.extents, grid, strict=True)))
