"""What a box of a result reads of an operand, dimension by dimension.

An access is data: it names a dimension of the result and how its rows follow from those
of the operand. Boxes, words and memory of an operator follow from its accesses. This
file needs no torch, so that planning may read it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from synth.runtime.grid.boxes import REMEMBERED, Box, Interval, input_rows, volume
from synth.runtime.grid.boxes import Window as RowWindow
from synth.runtime.grid.row_maps import RowMap, rows_read


class Same(NamedTuple):
    """Row `i` of the result reads row `i - start` of `size` rows, if there is one.

    start: where the operand begins in a concatenation. size: None for all rows.
    """

    dim: int
    start: int = 0
    size: int | None = None


class Whole(NamedTuple):
    """Every row of the result reads all rows."""

    size: int


class Single(NamedTuple):
    """One row, which is broadcast. A rank without words of the result reads it, too."""


class Windows(NamedTuple):
    """Row `i` of the result reads the rows of its window."""

    dim: int
    window: RowWindow


class Spans(NamedTuple):
    """Row `i` of the result reads rows of the interval `rows[i]`; these do not fall.

    taps: the rows that each row of the result reads; None for whole intervals.
    """

    dim: int
    rows: tuple[Interval, ...]
    taps: tuple[tuple[int, ...], ...] | None = None


class Groups(NamedTuple):
    """Row `i` of the result reads all `reads` rows of its group of `rows` rows."""

    dim: int
    rows: int
    reads: int


class Rows(NamedTuple):
    """Row `i` of the result reads one row of a map, or none.

    dim: None where the result has only the first row, without the dimension.
    """

    dim: int | None
    row_map: RowMap


Access = Same | Whole | Single | Windows | Spans | Groups | Rows
RowSet = Sequence[int]  # sorted rows


def aligned(operand: Sequence[int], result: Sequence[int]) -> tuple[Access, ...]:
    """A broadcast operand, whose dimensions align with the result's at the last one."""
    skip = len(result) - len(operand)
    if tuple(operand) == tuple(result):
        return tuple(map(Same, range(len(operand))))
    return tuple(
        Same(dim) if extent == result[dim] else Single()
        for dim, extent in enumerate(operand, skip)
    )


def read_box(accesses: Sequence[Access], box: Box) -> Box:
    """The box of an operand that a box of the result reads."""
    if not volume(box) and any(isinstance(each, Whole) for each in accesses):
        return ((0, 0),) * len(accesses)
    return tuple(_interval(each, box) for each in accesses)


def read_rows(accesses: Sequence[Access], box: Box) -> tuple[RowSet, ...]:
    """The rows of every dimension of an operand that a box of the result reads."""
    found = tuple(_rows(each, box) for each in accesses)
    return found if volume(box) and all(found) else ((),) * len(found)


def read_ends(accesses: Sequence[Access], box: Box) -> Box:
    """The least box of an operand with all rows that a box of the result reads.

    `read_box` has rows at its ends which lie between those of a stride or a dilation.
    """
    found = read_box(accesses, box)
    if not volume(box) or not volume(found):
        return ((0, 0),) * len(accesses)
    pairs = zip(accesses, found, strict=True)
    ends = tuple(_ends(each, box, interval) for each, interval in pairs)
    return ends if volume(ends) else ((0, 0),) * len(accesses)


def _ends(access: Access, box: Box, interval: Interval) -> Interval:
    match access:
        case Windows(dim, window):
            return tapped_rows(box[dim], window)
        case Spans(dim, rows, None):
            read = [each for each in rows[slice(*box[dim])] if each[0] < each[1]]
        case Spans(dim, _, taps):
            assert taps is not None
            ends = [taps[row] for row in range(*box[dim])]
            read = [(rows[0], rows[-1] + 1) for rows in ends if rows]
        case _:
            return interval
    if not read:
        return 0, 0
    return min(low for low, _ in read), max(high for _, high in read)


@lru_cache(REMEMBERED)
def tapped_rows(rows: Interval, window: RowWindow) -> Interval:
    """The least interval with the input rows that some output rows read."""
    taps = range(0, window.dilation * window.kernel, window.dilation)
    starts = (window.stride * row - window.padding for row in range(*rows))
    read = [
        row
        for start in starts
        for tap in taps
        if 0 <= (row := start + tap) < window.size
    ]
    return (min(read), max(read) + 1) if read else (0, 0)


def _interval(access: Access, box: Box) -> Interval:
    match access:
        case Same(dim, 0, None):
            return box[dim]
        case Same(dim, start, size):
            low, high = (max(end - start, 0) for end in box[dim])
            return (low, high) if size is None else (min(low, size), min(high, size))
        case Whole(size):
            return 0, size
        case Windows(dim, window):
            return input_rows(box[dim], window)
        case Spans(dim, rows, _):
            low, high = box[dim]
            return (rows[low][0], rows[high - 1][1]) if low < high else (0, 0)
        case Groups(dim, rows, reads):
            low, high = box[dim]
            last = -(-high // rows) * reads
            return (low // rows * reads, last) if low < high else (0, 0)
        case Rows():
            raise TypeError(f"{access} reads rows that are no interval")
    return 0, 1


def _rows(access: Access, box: Box) -> RowSet:
    if isinstance(access, Rows):
        dim, row_map = access
        return rows_read(row_map, (0, 1) if dim is None else box[dim])
    return range(*_interval(access, box))
