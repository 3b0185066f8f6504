"""Which input row every output row of a node reads along one dimension: padding, slices, shifts.

Kind `reindex` of a network. Who owns an output row is a rule of the ranks, so their module says it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from synth.runtime.grid import row_maps

CONSTANT = row_maps.CONSTANT  # a row that reads no input row
Run = tuple[int, int, int]  # first input row, number of rows, step; (CONSTANT, number, 0)


@dataclass(frozen=True)
class RowMap:
    """The input row of every output row, as runs of equal steps. `size` is the number of input rows."""

    size: int
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, size: int, rows: Sequence[int]) -> RowMap:
        """The map of a list of input rows, in the fewest runs."""
        return cls(size, tuple(_runs(tuple(rows))))

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The input row of every output row."""
        return tuple(itertools.chain.from_iterable(_rows(run) for run in self.runs))

    @property
    def plain(self) -> bool:
        """Whether every row reads itself."""
        return self.runs == ((0, self.size, 1),) or self.rows == tuple(range(self.size))

    @cached_property
    def home(self) -> Sequence[int]:
        """Output row -> the input row whose owner owns the output row, as on the ranks; see `row_maps`."""
        return row_maps.home_rows(self.size, self.rows)


@dataclass(frozen=True)
class Reindexing:
    """A node that moves rows: its name, its map of every dimension of the input, and its shape.

    dims: of the result, each the dimension of the input that it is; () where they are the same.
    """

    name: str
    maps: tuple[RowMap, ...]
    shape: tuple[int, ...]
    dims: tuple[int, ...] = ()


def _rows(run: Run) -> Iterable[int]:
    first, count, step = run
    if first == CONSTANT or step == 0:
        return (first,) * count
    return range(first, first + count * step, step)


def _runs(rows: tuple[int, ...]) -> Iterable[Run]:
    start = 0
    while start < len(rows):
        first, end = rows[start], start + 1
        step = 0 if first == CONSTANT else 1
        pair = rows[start : start + 2]
        if len(pair) == 2 and CONSTANT not in pair:
            rise = pair[1] - first
            alone = abs(rise) > 1 and rows[end + 1 : end + 2] != (pair[1] + rise,)
            step = 1 if alone else rise
        while end < len(rows) and rows[end] == rows[end - 1] + step and (rows[end] != CONSTANT or not step):
            end += 1
        yield first, end - start, step
        start = end
