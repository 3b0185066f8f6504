"""What a box of a result reads of an operand, dimension by dimension.

An access is data: it names a dimension of the result and how its rows follow from those
of the operand. Boxes, words and memory of an operator follow from its accesses. This
file needs no torch, so that planning may read it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synth.runtime.grid.boxes import Box, Interval, input_rows, volume
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
    """Row `i` of the result reads the interval `rows[i]`; intervals do not fall."""

    dim: int
    rows: tuple[Interval, ...]


class Rows(NamedTuple):
    """Row `i` of the result reads one row of a map, or none.

    dim: None where the result has only the first row, without the dimension.
    """

    dim: int | None
    row_map: RowMap


Access = Same | Whole | Single | Windows | Spans | Rows
RowSet = Sequence[int]  # sorted rows


def aligned(operand: Sequence[int], result: Sequence[int]) -> tuple[Access, ...]:
    """A broadcast operand, whose dimensions align with the result's at the last one."""
    skip = len(result) - len(operand)
    if tuple(operand) == tuple(result):
        return tuple(map(Same, range(len(operand))))
    return tuple(
        Single() if extent == 1 else Same(dim)
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
        case Spans(dim, rows):
            low, high = box[dim]
            return (rows[low][0], rows[high - 1][1]) if low < high else (0, 0)
        case Rows():
            raise TypeError(f"{access} reads rows that are no interval")
    return 0, 1


def _rows(access: Access, box: Box) -> RowSet:
    if isinstance(access, Rows):
        dim, row_map = access
        return rows_read(row_map, (0, 1) if dim is None else box[dim])
    return range(*_interval(access, box))
