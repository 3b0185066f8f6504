"""Which input row every output row reads along one dimension, and who owns the result.

Padding, slices, shifts, flips and repetitions are such maps, one for each dimension.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property, lru_cache

from synth.runtime.grid.boxes import REMEMBERED, Interval

CONSTANT = -1  # an output row that reads no input row


class RowMap:
    """Output row `i` reads input row `rows[i]` of `size`, or none (`CONSTANT`).

    Rows that read nothing are at both ends only. Raises `ValueError` for others.
    """

    rows: Sequence[int]

    def __init__(self, size: int, rows: Sequence[int]) -> None:
        self.size, self.rows = size, _in_steps(rows)
        first, last = read_rows(self.rows)
        inner = self.rows[first:last]
        ends = (*inner[:1], *inner[-1:]) if isinstance(inner, range) else inner
        if any(not 0 <= row < size for row in ends):
            raise ValueError(f"rows {inner} are none of {size} input rows")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowMap):
            return NotImplemented
        return self.size == other.size and self.rows == other.rows

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.size, self.rows))

    def __repr__(self) -> str:
        return f"RowMap({self.size}, {self.rows})"

    @property
    def plain(self) -> bool:
        """Whether every row reads itself."""
        return self.rows == range(self.size)

    @cached_property
    def home(self) -> Sequence[int]:
        """Output row -> the input row whose owner owns it."""
        return home_rows(self.size, self.rows)

    def then(self, other: RowMap) -> RowMap | None:
        """The map of both, this one first; None if rows inside read nothing."""
        rows = [self.rows[row] if row != CONSTANT else CONSTANT for row in other.rows]
        first, last = read_rows(rows)
        if CONSTANT in rows[first:last]:
            return None
        return RowMap(self.size, rows)


def padded_rows(size: int, before: int, after: int, mode: str) -> list[int]:
    """The input row of every row of a padded dimension.

    Negative numbers crop. Circular padding repeats the rows that are left.
    """
    rows = range(-before, size + after)
    if mode == "constant":
        return [row if 0 <= row < size else CONSTANT for row in rows]
    if mode == "circular":
        kept = range(size)[max(0, -before) : size - max(0, -after)]
        if max(before, after) > len(kept):
            raise ValueError(mode)  # torch pads with what it has not written
        rows = range(-max(0, before), len(kept) + max(0, after))
        return [kept[row % len(kept)] for row in rows]
    if mode == "replicate":
        return [min(max(row, 0), size - 1) for row in rows]
    if mode != "reflect":
        raise ValueError(mode)
    period = max(1, 2 * size - 2)
    return [min(row % period, -row % period) for row in rows]


def read_rows(rows: Sequence[int]) -> Interval:
    """The output rows between the constant ones at both ends."""
    if isinstance(rows, range):
        return 0, len(rows)
    found = [index for index, row in enumerate(rows) if row != CONSTANT]
    return (found[0], found[-1] + 1) if found else (0, 0)


def home_rows(size: int, rows: Sequence[int]) -> Sequence[int]:
    """Output row -> the input row whose owner owns the output row.

    A map whose rows go up, or down, keeps them where they are; constant rows go to the
    owner of the row beside them. A permutation keeps the layout. Any other map keeps
    its longest run of rising rows, and the rows beside it go to the ends of that run.
    """
    first, last = read_rows(rows)
    if isinstance(rows, range) and rows:
        return rows
    inner = list(rows[first:last])
    if not inner:
        return tuple(index * size // len(rows) for index in range(len(rows)))
    steps = [after - before for before, after in itertools.pairwise(inner)]
    if min(steps, default=0) < 0 < max(steps, default=0):
        if sorted(inner) == list(range(size)) and len(rows) == size:
            return tuple(range(size))
        low, high = _longest_rise(steps)
        inner = [inner[min(max(index, low), high)] for index in range(len(inner))]
    before, after = (inner[0],) * first, (inner[-1],) * (len(rows) - last)
    return (*before, *inner, *after)


def _longest_rise(steps: Sequence[int]) -> Interval:
    """First and last place of the longest run without a step down."""
    best = start = 0
    length = 0
    for index, step in enumerate([*steps, -1]):
        if step >= 0:
            continue
        if index - start + 1 > length:
            best, length = start, index - start + 1
        start = index + 1
    return best, best + length - 1


def _in_steps(rows: Sequence[int]) -> Sequence[int]:
    """Rows with one step between them as a range, of which only the ends are read."""
    if not rows or min(rows[0], rows[-1]) <= CONSTANT:
        return tuple(rows)
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    made = range(rows[0], rows[0] + step * len(rows), step or 1)
    same = isinstance(rows, range) or tuple(rows) == tuple(made)
    return made if same else tuple(rows)


@lru_cache(REMEMBERED)
def owned_rows(row_map: RowMap, own: Interval) -> Interval:
    """The output rows that the owner of an interval of input rows owns."""
    low, high = own
    home = row_map.home
    if isinstance(home, range) and home.step > 0:
        return bisect_left(home, low), bisect_left(home, high)
    mine = [index for index, row in enumerate(home) if low <= row < high]
    return (mine[0], mine[-1] + 1) if mine else _nothing(home, low)


def _nothing(home: Sequence[int], low: int) -> Interval:
    """An empty interval, in the place where the rows would be."""
    place = sum(row < low for row in home)
    return place, place


@lru_cache(REMEMBERED)
def rows_read(row_map: RowMap, out: Interval) -> Sequence[int]:
    """The input rows that an interval of output rows reads, sorted, each once."""
    rows = row_map.rows[slice(*out)]
    if isinstance(rows, range):
        return rows if rows.step > 0 else rows[::-1]
    return tuple(sorted(set(rows) - {CONSTANT}))


def inside(rows: Sequence[int], interval: Interval) -> slice:
    """The slice of sorted rows that are in an interval."""
    low, high = interval
    return slice(bisect_left(rows, low), bisect_left(rows, high))
