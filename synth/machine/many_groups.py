"""Seconds of collectives of many groups at once, as arrays over placed grids.

`rank_groups` and `collectives` price one group and one size. A network planner compares thousands of placed
grids, whose groups and slices are few. So each distinct pair of them is priced once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from synth.base.array_kinds import kinds_of
from synth.layer.axes import AXES, Axis, Order, PerAxis
from synth.machine.collectives import Cost, Group, Op, best, exchange_seconds
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of
from synth.schedule.ownership import strides_of

Seconds = NDArray[np.float64]
Counts = NDArray[np.int64]


@lru_cache(maxsize=64)
def costs_on(machine: Machine) -> Callable[[Op, float, Group], Cost]:
    """`collectives.best` of a machine, with a cache."""
    return lru_cache(maxsize=1 << 17)(partial(best, machine))


@dataclass(frozen=True)
class Groups:
    """The distinct groups of some placed grids, and for every placed grid the index of its group."""

    distinct: tuple[Group, ...]
    index: Counts

    @property
    def sizes(self) -> Counts:
        """Members of the group of every placed grid."""
        return np.array([group.size for group in self.distinct], np.int64)[self.index]

    def loads(self, sizes: Seconds) -> Loads:
        """The groups with some bytes per placed grid."""
        some, which = np.unique(sizes, return_inverse=True)
        pairs, index = np.unique(self.index * len(some) + which.reshape(-1), return_inverse=True)
        groups, places = np.divmod(pairs, len(some))
        distinct = [self.distinct[group] for group in groups.tolist()]
        return Loads(list(zip(distinct, some[places].tolist(), strict=True)), index.reshape(-1))


@dataclass(frozen=True)
class Loads:
    """The distinct pairs of a group and its bytes, and for every placed grid the index of its pair."""

    distinct: list[tuple[Group, float]]
    index: Counts

    def priced(self, price: Callable[[Group, float], float]) -> Seconds:
        """Seconds for every placed grid; each pair is priced once."""
        found: Seconds = np.array([price(group, size) for group, size in self.distinct])[self.index]
        return found


class ManyGroups:
    """The groups of many placed grids on a machine, and the seconds of their exchanges.

    grids: one row per placed grid, the columns in the order of `AXES`. orders: one order of the axes per row.
    """

    def __init__(self, machine: Machine, grids: Counts, orders: Sequence[Order]) -> None:
        self.machine, self.grids, self.orders = machine, grids, orders
        self._strides = strides_of(grids, orders)
        self._of: dict[tuple[Axis, ...], Groups] = {}

    def of(self, axes: tuple[Axis, ...]) -> Groups:
        """The worst group of the ranks that differ only along some axes; see `group_of`."""
        if axes not in self._of:
            self._of[axes] = self._worst(axes)
        return self._of[axes]

    def _worst(self, axes: tuple[Axis, ...]) -> Groups:
        columns = [AXES.index(axis) for axis in axes]
        counts, steps = self.grids[:, columns], self._strides[:, columns]
        size, procs = counts.prod(axis=1), self.grids.prod(axis=1)
        inside = [self._inside(counts, steps, level.ranks, size, procs) for level in self.machine.levels]
        inside[-1] = np.where(inside[-1] == 0, 0, size)
        first, index = kinds_of([*inside, procs])
        rows, groups = np.stack([*inside, procs], axis=1)[first], list[Group]()
        apart: dict[Group, int] = {}
        for number, row in enumerate(rows.tolist()):
            if all(row[:-1]):
                groups.append(self._group(row))
                continue
            groups.append(Group((1,)))  # a placeholder: its rows are looked at one by one
            for place in np.flatnonzero(index == number).tolist():
                made = group_of(self.machine, PerAxis(*self.grids[place].tolist()), self.orders[place], axes)
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

    def seconds(self, op: Op, loads: Loads, pieces: int = 1) -> Seconds:
        """Seconds of `pieces` collectives, each on an equal part of the bytes, for every placed grid."""
        cost = costs_on(self.machine)
        return pieces * loads.priced(lambda group, size: cost(op, size / pieces, group).seconds)

    def messages(self, sizes: Seconds, groups: Groups, neighbours: Counts) -> Seconds:
        """Seconds of one exchange with neighbours, `sizes` bytes in all, on the outermost level crossed."""
        found, loads = np.zeros(len(sizes)), groups.loads(sizes)
        for count in set(neighbours.tolist()):
            price = partial(self._exchange, count)
            found = np.where(neighbours == count, loads.priced(price), found)
        return found

    def _exchange(self, count: int, group: Group, size: float) -> float:
        return exchange_seconds(self.machine, size, group, count)
