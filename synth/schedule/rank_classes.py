"""Classes of processes that receive equally many words: on a large grid, most of those along an axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from synth.layer.axes import DIMS, SPATIAL, Tensor
from synth.schedule.ownership import Array, Ownership

if TYPE_CHECKING:
    from synth.schedule.volume import Visits

FLAT: tuple[Tensor, ...] = ("Ker", "Out")
FRAMED: tuple[Tensor, ...] = ("In", "Out")  # tensors that may have a halo, Out if an axis is turned
ROWS = ("visited", "mine", "carried", "owned", "wanted")  # of a tensor with a halo; see `ownership`


def classes_of(ownership: Ownership, visits: Visits) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Per axis: one coordinate of every class, and coordinate -> class."""
    tiles: dict[str, int] = dict(zip(SPATIAL, visits.rows, strict=True))
    named: list[tuple[Tensor, str, dict[str, int]]] = []
    for tensor in FLAT:
        named += [(tensor, name, {}) for name in ("slice", "shard")]
    for tensor in FRAMED if ownership.nest.turned else FRAMED[:1]:
        names = [name for name in ROWS if name != "wanted" or tensor == visits.written]
        named += [(tensor, name, tiles) for name in names if tensor not in visits.reuses]
    factors = [
        ownership.length(tensor, name, dim, counts.get(dim, 1))
        for tensor, name, counts in named
        for dim in DIMS[tensor]
    ]
    classes = [alike(parts, axis, factors) for axis, parts in enumerate(ownership.parts)]
    first = tuple(np.unique(each, return_index=True)[1] for each in classes)
    return first, tuple(classes)


def alike(parts: int, axis: int, factors: Iterable[Array]) -> Array:
    """Classes of the coordinates along an axis: equal in all lengths."""
    columns = [np.moveaxis(f, axis, 0).reshape(parts, -1) for f in factors if f.shape[axis] > 1]
    columns.insert(0, np.zeros((parts, 1), np.int64))
    differs = np.ones(parts, bool)  # from the coordinate before: the first of a run of equal rows
    differs[1:] = np.any([(each[1:] != each[:-1]).any(axis=1) for each in columns], axis=0)
    starts = np.flatnonzero(differs)
    numbers: dict[bytes, int] = {}
    table = np.concatenate([each[starts] for each in columns], axis=1)
    runs = [numbers.setdefault(row.tobytes(), len(numbers)) for row in table]
    return np.repeat(np.array(runs, np.int64), np.diff(np.append(starts, parts)))
