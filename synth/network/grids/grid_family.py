"""The grids that a layer of a network may have.

The family is every grid of at most P processes that keeps the work balance; `synth.search.grids` defines the
counts that an axis admits, and the balance. If all P processes are requested, the family holds the grids of
exactly P, unless there are none. With the objective `time`, it is every grid of exactly P, P/2, P/4, ...
processes. These need not be balanced, because the time model charges the extra work itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, PerAxis
from synth.layer.nest import Nest
from synth.search.grids import Space, work_cap

Array = NDArray[Any]

NONE, NONE_CUT = np.ones((0, len(AXES)), np.int64), np.ones((1, 0), np.int64)
MAX_GRIDS = 1 << 21  # grids that are enumerated together; above it, the balance is narrowed
AT_ONCE = 1 << 16  # rows times counts of an axis that are looked at together


def family(
    nest: Nest, procs: int, balance: float, exact: bool = False, uneven: bool = False, timed: bool = False
) -> Array:
    """The family of one layer, by (grid, axis), each grid once, in ascending order.

    Grids whose channels are not single intervals are left out if others remain.
    exact: use all processes if a balanced grid does.
    uneven: measure the balance against the grids of exactly `procs` alone.
    timed: the objective is time.
    """
    full, free = (Space(nest, procs, {}, each) for each in (True, False))
    least = (full.least_work if uneven else None) or free.least_work or 1
    if timed:
        rows = _within(full)
        if not (exact and len(rows)):
            sizes = [procs >> shift for shift in range(1, procs.bit_length())]  # few ranks start up faster
            rows = np.concatenate([rows, *(_within(Space(nest, size, {}, True)) for size in sizes)])
        rows = rows if len(rows) else _within(free)
    else:
        cap = work_cap(least, balance)
        rows = _within(full, cap)
        if not (exact and len(rows)):
            rows = np.concatenate([rows, _balanced(free, cap)])
    rows = _distinct(rows)
    if nest.extents.g == 1:  # one interval in any case
        return rows
    single = _single_intervals(nest, rows)
    return rows[single] if single.any() else rows


def _balanced(space: Space, cap: int) -> Array:
    """All grids whose largest block has at most `cap` iterations, by (grid, axis).

    If these are too many, the cap moves towards the least work until they are few enough.
    """
    least = space.least_work
    if least is None:
        return NONE
    while True:
        try:
            return _within(space, cap, MAX_GRIDS if cap > least else None)
        except _TooManyError:
            cap = least + (cap - least) // 2


class _TooManyError(Exception):
    """More grids than are enumerated together."""


def _within(space: Space, cap: int | None = None, most: int | None = None) -> Array:
    """All grids of a space whose largest block has at most `cap` iterations, by (grid, axis).

    Raises `_TooManyError` above `most`. Rows grow axis by axis. A row is dropped when an even cut of the
    remaining axes over all remaining processes still exceeds the cap.
    """
    rest = space.nest.extents.size
    cap = rest if cap is None else cap
    integer: Any = np.int64 if max(rest << 7, cap) * space.procs < 2**62 else object
    rows, used, work = NONE_CUT, np.ones(1, np.int64), np.ones(1, integer)
    for axis in AXES[:-1]:
        rest //= getattr(space.nest.extents, axis)
        extended, options = [], space.counts(axis)
        together = max(1, AT_ONCE // max(1, len(rows)))
        for first in range(0, len(options), together):
            some = options[first : first + together]
            parts = np.array(some, np.int64)[:, None]
            block = work * np.array([[space.block(axis, count)] for count in some], integer)
            remaining = space.procs // (used * parts)
            fits = (remaining > 0) & (block * rest <= cap * remaining) & (block <= cap)
            if space.exact:
                fits &= space.procs % (used * parts) == 0
            at, index = np.nonzero(np.asarray(fits, dtype=bool))
            extended.append((index, parts[at, 0], block[at, index]))
        index, counts, work = (np.concatenate(each) for each in zip(*extended, strict=True))
        if most is not None and len(index) > most:
            raise _TooManyError
        rows, used = np.column_stack([rows[index], counts]), used[index] * counts
    index, counts = _last_counts(space, space.procs // used, cap // work)
    if most is not None and len(index) > most:
        raise _TooManyError
    return np.column_stack([rows[index], counts])


def _last_counts(space: Space, remaining: Array, largest: Array) -> tuple[Array, Array]:
    """(row, count of the last axis) of all counts that rows admit.

    remaining, largest: the most processes, and the most positions of a block along that axis, by row. Blocks
    shrink as counts grow, so a row admits counts in succession.
    """
    options = np.array(space.counts(AXES[-1]), np.int64)
    blocks = np.array([space.block(AXES[-1], count) for count in options.tolist()], np.int64)
    largest = np.minimum(largest, blocks[:1]).astype(np.int64)
    first = len(blocks) - np.searchsorted(blocks[::-1], largest, "right")
    if space.exact:
        first = np.maximum(first, np.searchsorted(options, remaining))
    many = np.maximum(0, np.searchsorted(options, remaining, "right") - first)
    index = np.repeat(np.arange(len(many)), many)
    at = np.arange(len(index)) + np.repeat(first - (np.cumsum(many) - many), many)
    return index, options[at]


def _distinct(rows: Array) -> Array:
    """The rows in ascending order, each once."""
    radix = rows.max(axis=0, initial=0) + 1
    if math.prod(radix.tolist()) >= 2**63:
        return np.unique(rows, axis=0)
    step = np.concatenate([np.cumprod(radix[:0:-1])[::-1], [1]])
    found: Array = rows[np.unique(rows @ step, return_index=True)[1]]
    return found


def _single_intervals(nest: Nest, rows: Array) -> Array:
    """Whether the channels that a rank of a grid owns are one interval; see `OwnedBoxes.flat`."""
    n = nest.extents
    g, c, k = (rows[:, AXES.index(axis)] for axis in ("g", "c", "k"))
    found: Array = (g == n.g) | ((c == 1) & (k == 1)) | (n.c == n.k == 1)
    return found


def largest_block(nest: Nest, grid: PerAxis) -> PerAxis:
    """W: the largest block, per axis."""
    return PerAxis(*(-(-n // p) for n, p in zip(nest.extents, grid, strict=True)))
