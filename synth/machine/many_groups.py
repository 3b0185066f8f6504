"""Seconds of collectives of many groups at once, as arrays over placed grids.

`rank_groups` and `collectives` price one group and one size. A network planner compares thousands of placed
grids, whose groups are few. So the groups are found by arithmetic on arrays, and each distinct one is priced
once: without betas for small messages, the seconds of every algorithm are a line over the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, Axis, Order, PerAxis
from synth.machine.collectives import ALGORITHMS, Group, Op, best, cost
from synth.machine.hierarchy import Level, Machine
from synth.machine.rank_groups import group_of

Seconds = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """The distinct groups of some placed grids, and for every placed grid the index of its group.

    lines: of every operation so far, the seconds of its algorithms by placed grid; see `ManyGroups`.
    """

    distinct: tuple[Group, ...]
    index: Counts
    lines: dict[tuple[Op, float], tuple[Seconds, Seconds]] = field(default_factory=dict, compare=False)

    @property
    def sizes(self) -> Counts:
        """Members of the group of every placed grid."""
        return np.array([group.size for group in self.distinct], np.int64)[self.index]


class ManyGroups:
    """The groups of many placed grids on a machine, and the seconds of their exchanges.

    grids: one row per placed grid, the columns in the order of `AXES`. orders: one order of the axes per row.
    """

    def __init__(self, machine: Machine, grids: Counts, orders: Sequence[Order]) -> None:
        self.machine, self.grids, self.orders = machine, grids, orders
        self._strides = np.ones_like(grids)
        for order in dict.fromkeys(orders):
            rows = np.array([each == order for each in orders])
            columns = [AXES.index(axis) for axis in order]
            after = np.ones(int(rows.sum()), np.int64)
            for column in reversed(columns):
                self._strides[rows, column] = after
                after = after * grids[rows, column]

    def of(self, axes: Sequence[Axis]) -> Groups:
        """The worst group of the ranks that differ only along some axes; see `group_of`."""
        columns = [AXES.index(axis) for axis in axes]
        counts, steps = self.grids[:, columns], self._strides[:, columns]
        size, procs = counts.prod(axis=1), self.grids.prod(axis=1)
        inside = [self._inside(counts, steps, level.ranks, size, procs) for level in self.machine.levels]
        inside[-1] = np.where(inside[-1] == 0, 0, size)
        rows, index = np.unique(np.stack([*inside, procs], axis=1), axis=0, return_inverse=True)
        index, groups = index.reshape(-1), list[Group]()
        apart: dict[Group, int] = {}
        for number, row in enumerate(rows.tolist()):
            if all(row[:-1]):
                groups.append(self._group(row))
                continue
            groups.append(Group((1,)))  # a placeholder: its rows are looked at one by one
            for place in np.flatnonzero(index == number).tolist():
                made = group_of(
                    self.machine, PerAxis(*self.grids[place].tolist()), self.orders[place], tuple(axes)
                )
                index[place] = apart.setdefault(made, len(rows) + len(apart))
        return Groups((*groups, *apart), index)

    def _group(self, row: list[int]) -> Group:
        below = (1, *(level.ranks for level in self.machine.levels[:-1]))
        return Group(tuple(row[:-1]), tuple(float(min(row[-1], each or row[-1])) for each in below))

    @staticmethod
    def _inside(counts: Counts, steps: Counts, ranks: int | None, size: Counts, procs: Counts) -> Counts:
        """Members in one unit of a level; 0 where axes and units do not divide each other evenly."""
        if ranks is None:
            return size
        within = (ranks % np.maximum(1, steps * counts) == 0) & (steps * counts <= ranks)
        across = (steps <= ranks) & (ranks % np.minimum(steps, ranks) == 0) & ((steps * counts) % ranks == 0)
        each = np.where(
            (steps % ranks == 0) | (counts == 1),
            1,
            np.where(within, counts, np.where(across, ranks // np.minimum(steps, ranks), 0)),
        )
        return np.where(ranks >= procs, size, each.prod(axis=1))

    def seconds(self, op: Op, sizes: Seconds, groups: Groups, pieces: int = 1) -> Seconds:
        """Seconds of `pieces` collectives, each on an equal part of `sizes` bytes, for every placed grid."""
        if any(level.small for level in self.machine.levels) or not self._in_lines(op):
            return self._one_by_one(op, sizes, groups, pieces)
        at_once, per_byte = self._lines(op, groups)
        if op in ("all_gather", "reduce_scatter") and self._level is not None and self._level.pieces:
            ((below, _),) = self._level.pieces
            short = sizes / pieces / groups.sizes < below
            per_byte = np.where(short, self._lines(op, groups, below / 2)[1], per_byte)
        lines = pieces * at_once + per_byte * sizes
        return np.where(sizes > 0, lines.min(axis=0), 0.0)

    def _one_by_one(self, op: Op, sizes: Seconds, groups: Groups, pieces: int) -> Seconds:
        """The same, where the seconds of an algorithm are no line over the size."""
        result = np.zeros(len(sizes))
        for number, group in enumerate(groups.distinct):
            rows = groups.index == number
            if group.size == 1 or not rows.any():
                continue
            some, back = np.unique(sizes[rows], return_inverse=True)
            priced = [pieces * best(self.machine, op, size / pieces, group).seconds for size in some]
            result[rows] = np.array(priced)[back.reshape(-1)]
        return result

    def _in_lines(self, op: Op) -> bool:
        """Whether the seconds of every algorithm are a line over the size, or two for rings of one level."""
        machine = self.machine
        parted = any(level.pieces for level in machine.levels) and op in ("all_gather", "reduce_scatter")
        return not parted or (machine.algorithms == ("ring",) and self._level is not None)

    @property
    def _level(self) -> Level | None:
        """The level of a machine with one, whose short pieces are all of one kind."""
        (first, *others) = self.machine.levels
        return first if not others and len(first.pieces) <= 1 else None

    def _lines(self, op: Op, groups: Groups, large: float = 2.0**30) -> tuple[Seconds, Seconds]:
        """By (algorithm, placed grid): the two numbers of `_line`, 0 for groups of one rank."""
        key = op, large
        if key not in groups.lines:
            none = np.zeros(len(self.machine.algorithms or ALGORITHMS))
            found = [
                _line(self.machine, op, group, large) if group.size > 1 else (none, none)
                for group in groups.distinct
            ]
            at_once, per_byte = (np.stack(each, axis=1) for each in zip(*found, strict=True))
            groups.lines[key] = at_once[:, groups.index], per_byte[:, groups.index]
        return groups.lines[key]

    def messages(self, sizes: Seconds, groups: Groups, neighbours: Counts) -> Seconds:
        """Seconds of one exchange with neighbours, `sizes` bytes in all, on the outermost level crossed."""
        result = np.zeros(len(sizes))
        for number, group in enumerate(groups.distinct):
            rows = (groups.index == number) & (sizes > 0)
            if not group.units() or not rows.any():
                continue
            at, _ = group.units()[-1]
            level, flows = self.machine.levels[at], group.shared(at)
            some, back = np.unique(sizes[rows], return_inverse=True)
            priced = np.array([level.exchange(size, flows) for size in some])[back.reshape(-1)]
            result[rows] = priced + level.message(0.0) * (neighbours[rows] - 1)
        return result


@lru_cache(maxsize=1 << 14)
def _line(machine: Machine, op: Op, group: Group, large: float) -> tuple[Seconds, Seconds]:
    """By algorithm: seconds of a collective on an empty buffer, and seconds per byte up to a large one."""
    names = machine.algorithms or ALGORITHMS
    empty = np.array([cost(machine, op, 0.0, group, name).seconds for name in names])
    whole = np.array([cost(machine, op, large, group, name).seconds for name in names])
    return empty, (whole - empty) / large
