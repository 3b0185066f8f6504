"""The grids that a layer of a network may have.

The family is every grid of at most P processes that keeps the work balance; `synth.search.grids` defines the
counts that an axis admits, and the balance. If all P processes are requested, the family holds the grids of
exactly P, unless there are none. With the objective `time`, it is every grid of exactly P, P/2, P/4, ...
processes. These need not be balanced, because the time model charges the extra work itself.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.base.array_kinds import kinds_of
from synth.layer.axes import AXES
from synth.layer.nest import Nest
from synth.search.grids import Space, work_cap

Array = NDArray[Any]

NONE = np.ones((0, len(AXES)), np.int64)
BEGIN = AXES[:-2]  # the axes that layers with other channels have in common
MAX_BEGUN = 1 << 18  # cuts of these axes that are listed for all layers
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
            halves = (_within(Space(nest, size, {}, True)) for size in sizes)
            rows = _distinct(np.concatenate([rows, *halves]))
        rows = rows if len(rows) else _within(free)
    else:
        cap = work_cap(least, balance)
        rows = _within(full, cap) if exact else NONE
        if not len(rows):
            rows = _balanced(free, cap)
    if nest.extents.g == 1:  # one interval in any case
        return rows
    single = _single_intervals(nest, rows)
    return rows[single] if single.any() else rows


def _balanced(space: Space, cap: int) -> Array:
    """All grids whose largest block has at most `cap` iterations, by (grid, axis).

    If these are too many, the cap moves towards the least work until they are few enough, for grids of fewer
    than all processes.
    """
    least, within = space.least_work, cap
    if least is None:
        return NONE
    while True:
        try:
            rows = _within(space, within, MAX_GRIDS if within > least else None)
        except _TooManyError:
            within = least + (within - least) // 2
        else:
            full = NONE if within == cap else _within(Space(space.nest, space.procs, {}, True), cap)
            return _distinct(np.concatenate([full, rows])) if len(full) else rows


class _TooManyError(Exception):
    """More grids than are enumerated together."""


def _within(space: Space, cap: int | None = None, most: int | None = None) -> Array:
    """All grids of a space whose largest block has at most `cap` iterations, by (grid, axis), ascending.

    Raises `_TooManyError` above `most`. Cuts of the first axes with as many processes and as much work have
    the same cuts of the others, so they are one row. Rows grow axis by axis. A row is dropped when an even
    cut of the remaining axes over all remaining processes still exceeds the cap.
    """
    rest = space.nest.extents.size
    cap = rest if cap is None else cap
    integer: Any = np.int64 if max(rest << 7, cap, space.procs) * space.procs < 2**62 else object
    begun = _begun(space) if integer is np.int64 else NOTHING_CUT
    begins = begun.cuts.shape[1]
    rest //= math.prod(space.nest.extents[:begins])
    used, work = begun.used.astype(integer), begun.work.astype(integer)
    row = np.flatnonzero(np.asarray((work * rest <= cap * (space.procs // used)) & (work <= cap), bool))
    used, work, rows = used[row], work[row], np.ones((len(row), 0), np.int64)
    for axis in AXES[begins:-1]:
        rest //= getattr(space.nest.extents, axis)
        options = np.array(space.counts(axis), np.int64)
        blocks = np.array([space.block(axis, count) for count in options.tolist()], integer)
        extended, together = [], max(1, AT_ONCE // len(options))
        for first in range(0, max(1, len(rows)), together):
            some = slice(first, first + together)
            block = work[some, None] * blocks
            remaining = space.procs // (used[some, None] * options)
            fits = (remaining > 0) & (block * rest <= cap * remaining) & (block <= cap)
            if space.exact:
                fits &= space.procs % (used[some, None] * options) == 0
            index, at = np.nonzero(np.asarray(fits, dtype=bool))
            extended.append((index + first, options[at], block[index, at]))
        index, counts, work = (np.concatenate(each) for each in zip(*extended, strict=True))
        rows, used, row = np.column_stack([rows[index], counts]), used[index] * counts, row[index]
        begun.require(row, most)
    index, counts = _last_counts(space, space.procs // used, cap // work)
    begun.require(row[index], most)
    return begun.extended(row[index], np.column_stack([rows[index], counts]))


class _Begun(NamedTuple):
    """All cuts of the first axes, ascending, by (cut, axis), and the kind of each.

    used, work: by kind, the processes, and the iterations along these axes of the largest block.
    """

    cuts: Array
    kind: Array
    used: Array
    work: Array

    def require(self, kinds: Array, most: int | None) -> None:
        """Raises `_TooManyError` if more than `most` rows have these kinds."""
        if most is not None and np.bincount(self.kind)[kinds].sum() > most:
            raise _TooManyError

    def extended(self, kinds: Array, others: Array) -> Array:
        """The cuts with each of the counts that `others` has for their kind. kinds: of others, ascending."""
        many = np.bincount(kinds, minlength=len(self.used))
        first, times = np.cumsum(many) - many, many[self.kind]
        shift = first[self.kind] - (np.cumsum(times) - times)
        at = np.arange(times.sum()) + np.repeat(shift, times)
        return np.column_stack([np.repeat(self.cuts, times, axis=0), others[at]])


NOTHING_CUT = _Begun(np.ones((1, 0), np.int64), np.zeros(1, np.intp), *np.ones((2, 1), np.int64))


def _begun(space: Space) -> _Begun:
    """The cuts of the first axes, which many layers of a network share; nothing where these are many."""
    counts = tuple(tuple(space.counts(axis)) for axis in BEGIN)
    if math.prod(map(len, counts)) > MAX_BEGUN:
        return NOTHING_CUT
    return _cuts(space.procs, space.exact, space.nest.extents[: len(BEGIN)], counts)


@lru_cache(maxsize=64)
def _cuts(procs: int, exact: bool, extents: tuple[int, ...], counts: tuple[tuple[int, ...], ...]) -> _Begun:
    """All cuts of some axes with these counts, over at most (if `exact`: divisors of) `procs` processes."""
    cuts, used, work = NOTHING_CUT.cuts, *np.ones((2, 1), np.int64)
    for extent, some in zip(extents, counts, strict=True):
        parts = np.array(some, np.int64)
        size = used[:, None] * parts
        index, at = np.nonzero(procs % size == 0 if exact else size <= procs)
        cuts, used = np.column_stack([cuts[index], parts[at]]), size[index, at]
        work = work[index] * -(-extent // parts[at])
    first, kind = kinds_of([used, work])
    return _Begun(cuts, kind, used[first], work[first])


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
    found: Array = rows[kinds_of(rows.T)[0]]
    return found


def _single_intervals(nest: Nest, rows: Array) -> Array:
    """Whether the channels that a rank of a grid owns are one interval; see `OwnedBoxes.flat`."""
    n = nest.extents
    g, c, k = (rows[:, AXES.index(axis)] for axis in ("g", "c", "k"))
    found: Array = (g == n.g) | ((c == 1) & (k == 1)) | (n.c == n.k == 1)
    return found
