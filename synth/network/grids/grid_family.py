"""The grids that a layer of a network may have.

The family is every grid of at most P processes that keeps the work balance; `synth.search.grids` defines the
counts that an axis admits, and the balance. If all P processes are requested, the family holds the grids of
exactly P, unless there are none. With the objective `time`, it is every grid of exactly P, P/2, P/4, ...
processes. These need not be balanced, because the time model charges the extra work itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.layer.axes import AXES, PerAxis
from synth.layer.nest import Nest
from synth.search.grids import Space, all_grids, work_cap

MAX_GRIDS = 1 << 21  # grids that are enumerated together; above it, the balance is narrowed


def family(
    nest: Nest, procs: int, balance: float, exact: bool = False, uneven: bool = False, timed: bool = False
) -> list[PerAxis]:
    """The family of one layer. Grids whose channels are not single intervals are left out if others remain.

    exact: use all processes if a balanced grid does.
    uneven: measure the balance against the grids of exactly `procs` alone.
    timed: the objective is time.
    """
    full, free = (Space(nest, procs, {}, each) for each in (True, False))
    least = (full.least_work if uneven else None) or free.least_work or 1
    cap = work_cap(least, balance)
    grids = all_grids(full, procs)
    if not timed:
        grids = _within_cap(nest, grids, cap)
    if timed:
        grids = [*grids, *([] if exact and grids else _halved(nest, procs))] or all_grids(free, procs)
    elif not (exact and grids):
        grids = list(dict.fromkeys([*grids, *balanced(free, cap)]))
    if nest.extents.g == 1:  # one interval in any case
        return grids
    return [g for g in grids if _single_intervals(nest, g)] or grids


def _within_cap(nest: Nest, grids: list[PerAxis], cap: int) -> list[PerAxis]:
    """The grids whose largest block has at most `cap` iterations."""
    extents = np.array(nest.extents, dtype=np.int64 if nest.extents.size < 2**62 else object)
    sizes = (-(-extents // np.array(grids, np.int64).reshape(-1, len(AXES)))).prod(axis=1)
    return [grids[at] for at in np.flatnonzero(sizes <= cap).tolist()]


def _halved(nest: Nest, procs: int) -> list[PerAxis]:
    """The grids of exactly half of the processes, of a quarter, and so on: few ranks start up faster."""
    sizes = [procs >> shift for shift in range(1, procs.bit_length())]
    return [grid for size in sizes for grid in all_grids(Space(nest, size, {}, True), size)]


def balanced(space: Space, cap: int) -> list[PerAxis]:
    """All grids whose largest block has at most `cap` iterations.

    If these are too many, the cap moves towards the least work until they are few enough.
    """
    least = space.least_work
    if least is None:
        return []
    while True:
        rows = _within(space, cap)
        if rows is not None:
            return list(map(PerAxis._make, rows.tolist()))
        cap = least + (cap - least) // 2


def _within(space: Space, cap: int) -> Any:
    """The process counts of all grids within a cap, one row per grid; None if there are too many.

    Rows grow axis by axis. A row is dropped when an even cut of the remaining axes over all remaining
    processes still exceeds the cap.
    """
    rest = space.nest.extents.size
    integer: Any = np.int64 if max(rest << 7, cap) * space.procs < 2**62 else object
    rows, used, work = np.ones((1, 0), np.int64), np.ones(1, np.int64), np.ones(1, integer)
    for axis in AXES:
        rest //= getattr(space.nest.extents, axis)
        extended = []
        for parts in space.counts(axis):
            block = work * space.block(axis, parts)
            remaining = space.procs // (used * parts)
            fits = (remaining > 0) & (block * rest <= cap * remaining) & (block <= cap)
            index = np.flatnonzero(np.asarray(fits, dtype=bool))
            extended.append((index, np.full(len(index), parts), block[index]))
        index, counts, work = (np.concatenate(each) for each in zip(*extended, strict=True))
        if len(index) > MAX_GRIDS and cap > (space.least_work or 0):
            return None
        rows, used = np.column_stack([rows[index], counts]), used[index] * counts
    return rows


def _single_intervals(nest: Nest, grid: PerAxis) -> bool:
    """Whether the channels that a rank owns are one interval; see `OwnedBoxes.flat`."""
    n = nest.extents
    return n.g == 1 or grid.g == n.g or (grid.c == grid.k == 1) or (n.c == n.k == 1)


def largest_block(nest: Nest, grid: PerAxis) -> PerAxis:
    """W: the largest block, per axis."""
    return PerAxis(*(-(-n // p) for n, p in zip(nest.extents, grid, strict=True)))
