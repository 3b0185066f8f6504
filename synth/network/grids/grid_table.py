"""Many grids as arrays, those with the lowest bounds first. Few of them are ever asked for as `PerAxis`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from synth.layer.axes import AXES, X_AXES, PerAxis
from synth.network.grids.box_rows import Array

FEW = 1 << 12  # counts of which a table is always small


class GridTable:
    """The grids of a family with lower bounds of their cost. A grid's place is its position here.

    rows: the process counts, by (place, axis), given in ascending order; grids with equal bounds keep it.
    bounds: by place. size: grids of the family. Those that are appended later have the places from there on,
    and belong to no selection of grids that split certain axes.
    """

    def __init__(self, rows: Array, bounds: Array) -> None:
        order = np.argsort(bounds, kind="stable")
        self._ascending: Array = np.empty(len(rows), np.int32)
        self._ascending[order] = np.arange(len(rows), dtype=np.int32)
        self.rows, self.bounds, self.size = _narrow(rows)[order], bounds[order], len(rows)
        self._within: dict[str, Array] = {}
        self._with_x: dict[PerAxis, Array] = {}

    def append(self, bounds: Mapping[PerAxis, float]) -> None:
        """Grids outside the family, with their bounds."""
        new = {grid: bound for grid, bound in bounds.items() if grid not in self.places}
        self.places.add(new, len(self.rows))
        self.rows = np.concatenate([self.rows, np.array(list(new), np.int32).reshape(-1, len(AXES))])
        self.bounds = np.concatenate([self.bounds, list(new.values())])

    def grid(self, place: int) -> PerAxis:
        """The grid at a place."""
        return PerAxis(*self.rows[place].tolist())

    def grids(self, places: Sequence[int] | Array) -> list[PerAxis]:
        """The grids at some places."""
        return grids_of(self.rows[places])

    def bound(self, grid: PerAxis) -> float:
        """The lower bound of the cost of a grid."""
        return float(self.bounds[self.places[grid]])

    @cached_property
    def places(self) -> Places:
        """Grid -> its place."""
        return Places(self.rows[: self.size], self._ascending)

    @property
    def parts(self) -> Any:
        """The counts of the grids of the family. With what it keeps they take more bytes than the table."""
        return parts_of(self.rows[: self.size])

    @cached_property
    def sizes(self) -> Array:
        """The processes of the grids of the family, by place."""
        found: Array = self.rows[: self.size].prod(axis=1, dtype=np.int32)
        return found

    def within(self, axes: str) -> Array:
        """The places of the grids that split no other axes than `axes`."""
        if set(axes) == set(AXES):
            return np.arange(len(self.rows))
        if axes not in self._within:
            self._within[axes] = np.flatnonzero(splits_only(self.rows[: self.size], axes))
        return self._within[axes]

    def with_x(self, x: PerAxis, axes: str = "") -> Array:
        """The places of the grids that split b, d, h and w as `x` does, and no other axes than `axes`."""
        if x not in self._with_x:
            b, d, h, w = self._x_columns
            self._with_x[x] = np.flatnonzero((b == x.b) & (d == x.d) & (h == x.h) & (w == x.w))
        places = self._with_x[x]
        return places[splits_only(self.rows[places], axes)] if axes else places

    @cached_property
    def _x_columns(self) -> tuple[Array, ...]:
        return tuple(self.rows[:, AXES.index(axis)] for axis in X_AXES)


class Places:
    """Grid -> its place, for grids that are given by (place, axis). ascending: their places in this order.

    A place is searched for when it is first asked for: a dictionary of all grids takes ten times their bytes.
    """

    def __init__(self, rows: Array, ascending: Array) -> None:
        self._rows, self._ascending = rows, ascending
        self._known: dict[tuple[int, ...], int] = {}

    def add(self, grids: Iterable[PerAxis], first: int) -> None:
        """Grids beyond the rows, whose places begin with `first`."""
        self._known.update((grid, place) for place, grid in enumerate(grids, first))

    def get(self, grid: tuple[int, ...], default: int) -> int:
        """The place of a grid; the default if it has none."""
        place = self._known.get(grid)
        if place is None:
            at = bisect_left(range(len(self._rows)), grid, key=self._grid)
            if at == len(self._rows) or self._grid(at) != grid:
                return default
            place = self._known[grid] = int(self._ascending[at])
        return place

    def __contains__(self, grid: tuple[int, ...]) -> bool:
        return self.get(grid, -1) >= 0

    def __getitem__(self, grid: tuple[int, ...]) -> int:
        place = self.get(grid, -1)
        if place < 0:
            raise KeyError(grid)
        return place

    def _grid(self, at: int) -> tuple[int, ...]:
        return tuple(self._rows[self._ascending[at]].tolist())


class Parts(PerAxis):
    """The counts of many grids: one array per axis."""

    def kinds(self, axis: str) -> tuple[Array, Array]:
        """The different counts along an axis, and by grid the place of its own among them."""
        known: dict[str, tuple[Array, Array]] = self.__dict__
        if axis not in known:
            known[axis] = _different(getattr(self, axis))
        return known[axis]


def _narrow(rows: Array) -> Array:
    """The same counts in few bytes."""
    integer: Any = np.int16 if rows.max(initial=0) < 2**15 else np.int32
    return rows.astype(integer)


def _different(counts: Array) -> tuple[Array, Array]:
    """The different counts, ascending, and by grid the place of its own among them."""
    most = int(counts.max(initial=0))
    if most > len(counts) + FEW:  # then sorting is faster than a table
        return np.unique(counts, return_inverse=True)
    seen = np.zeros(most + 1, dtype=bool)
    seen[counts] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[counts]


def parts_of(rows: Array) -> Any:
    """The counts of grids that are given by (grid, axis)."""
    return Parts(*rows.T.astype(np.int64))


def grids_of(rows: Array) -> list[PerAxis]:
    """Grids that are given by (grid, axis)."""
    return list(map(PerAxis._make, rows.tolist()))


def splits_only(rows: Array, axes: str) -> Array:
    """Whether each of some grids, by (grid, axis), splits no other axes than `axes`."""
    others = [rows[:, at] == 1 for at, axis in enumerate(AXES) if axis not in axes]
    found: Array = np.logical_and.reduce([np.ones(len(rows), dtype=bool), *others])
    return found
