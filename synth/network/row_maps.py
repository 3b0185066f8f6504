"""Which input row every output row of a node reads along one dimension: padding, slices, shifts.

Kind `reindex` of a network. `synth.runtime.grid.row_maps` computes the same owners on the ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

CONSTANT = -1  # a row that reads no input row
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
    def home(self) -> tuple[int, ...]:
        """Output row -> the input row whose owner owns the output row.

        A map whose rows go up, or down, keeps them where they are; constant rows go to the owner of the row
        beside them. A permutation keeps the layout. Any other map keeps its longest run of rising rows, and
        the rows beside it go to the ends of that run.
        """
        rows, size = self.rows, self.size
        read = [index for index, row in enumerate(rows) if row != CONSTANT]
        if not read:
            return tuple(index * size // len(rows) for index in range(len(rows)))
        inner = list(rows[read[0] : read[-1] + 1])
        steps = [after - before for before, after in itertools.pairwise(inner)]
        if min(steps, default=0) < 0 < max(steps, default=0):
            if sorted(inner) == list(range(size)) and len(rows) == size:
                return tuple(range(size))
            low, high = _longest_rise(steps)
            inner = [inner[min(max(index, low), high)] for index in range(len(inner))]
        return (*[inner[0]] * read[0], *inner, *[inner[-1]] * (len(rows) - read[-1] - 1))


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


def _longest_rise(steps: Sequence[int]) -> tuple[int, int]:
    """First and last place of the longest run without a step down."""
    best = start = length = 0
    for index, step in enumerate([*steps, -1]):
        if step >= 0:
            continue
        if index - start + 1 > length:
            best, length = start, index - start + 1
        start = index + 1
    return best, best + length - 1
