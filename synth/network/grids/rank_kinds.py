"""Ranks that stand for all ranks of a grid where words of a layer are counted.

Ranks whose boxes differ by a shift receive the same words. So of an axis one coordinate is enough for all
blocks of one length. Along a spatial axis it takes one inside each run of them, and those near its ends.
Where shards of a tensor are uneven, members of its group are of one kind if their shards have one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from synth.layer.axes import DIMS, LACKS, SPATIAL, TENSORS, Axis, Order, PerAxis, Tensor, strides
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.network.grids.owned_boxes import PlacedGrid
from synth.schedule.distribution import Distribution
from synth.schedule.ownership import Array

FIRST = 3  # coordinates along a spatial axis that a first look takes
SHAPES = 4  # shapes of shards along a dimension: of the longer slices, and of the others
# axes along which the members of a tensor's group differ; no group differs along g
GROUPS: tuple[tuple[Tensor | None, tuple[Axis, ...]], ...] = (
    (None, ("g",)),
    *((tensor, LACKS[tensor]) for tensor in TENSORS),
)


class CutAxis(NamedTuple):
    """A cut axis: the parts, of which the first are longer by one than others, and how many these are.

    extent, window: of the loop along a spatial axis, where kinds depend on them; else 0 and None.
    """

    parts: int
    longer: int
    extent: int = 0
    window: Window | None = None


class ShardShapes(NamedTuple):
    """The shapes of the shards of a slice along a dimension.

    between: members between two parts. short, shorter: the first parts with one position more, of the longer
    slices and of the others. alike: whether other parts than these have one shape.
    """

    between: int
    parts: int
    short: int = 0
    shorter: int = 0
    alike: bool = True


def ranks_of_kinds(placed: PlacedGrid, distribution: Distribution, tensors: Sequence[Tensor]) -> Array:
    """Ranks of a grid among which is one for every number of words of `tensors` that a rank receives."""
    grid, steps = placed.grid, strides(placed.grid, placed.order)
    ranks: Array = np.zeros(1, np.int32)
    for tensor, axes in GROUPS:
        split = [axis for axis in axes if getattr(grid, axis) > 1]
        if split:
            cuts = tuple([_cut(distribution.nest, axis, getattr(grid, axis)) for axis in split])
            shards = _shards(distribution, tensor) if tensor is not None and tensor in tensors else ()
            offset = _offsets(cuts, shards, tuple([steps[axis] for axis in split]))
            ranks = (ranks[:, None] + offset).reshape(-1)
    return ranks


@lru_cache(maxsize=1 << 14)
def _offsets(cuts: tuple[CutAxis, ...], shards: tuple[ShardShapes, ...], steps: tuple[int, ...]) -> Array:
    """By member of every kind, its distance from the first rank of the group. steps: by cut."""
    offset: Array = np.zeros(1, np.int32)
    for step, places in zip(steps, _places_of_members(cuts, shards), strict=True):
        offset = offset + np.int32(step) * places
    return offset


def few_ranks(placed: PlacedGrid, distribution: Distribution, tensors: Sequence[Tensor]) -> Array:
    """A few ranks of a grid, of which one often receives the most words, or nearly as many.

    Blocks and shards are the largest at the first coordinates, and only blocks between others have two halos.
    """
    return _few_ranks(placed.grid, placed.order)


@lru_cache(maxsize=1 << 14)
def _few_ranks(grid: PerAxis, order: Order) -> Array:
    steps, ranks = strides(grid, order), np.zeros(1, np.int32)
    for axis in SPATIAL:
        places = np.arange(min(FIRST, getattr(grid, axis)), dtype=np.int32)
        ranks = (ranks[:, None] + steps[axis] * places).reshape(-1)
    return ranks


def _cut(nest: Nest, axis: Axis, parts: int) -> CutAxis:
    extent = getattr(nest.extents, axis)
    if axis not in SPATIAL:
        return CutAxis(parts, extent % parts)
    return CutAxis(parts, extent % parts, extent, nest.windows[axis])


@lru_cache(maxsize=4096)
def _places_of_members(cuts: tuple[CutAxis, ...], shards: tuple[ShardShapes, ...]) -> tuple[Array, ...]:
    """The coordinates of members of a group, one member of every kind; an array for every cut."""
    if not shards:
        grid = np.meshgrid(*(_places(*each)[0] for each in cuts), indexing="ij")
        return tuple(each.reshape(-1) for each in grid)
    code, codes = _kinds_of_members(cuts)
    for each in shards:
        part = np.arange(each.parts)
        shape = (part < each.short) * 2 + (part < each.shorter) if each.alike else part
        shapes = SHAPES if each.alike else each.parts
        code = (code.reshape(-1, each.parts, each.between) * shapes + shape[:, None]).reshape(-1)
        codes *= shapes
    members = np.unravel_index(_first_of_each(code, codes), [each.parts for each in cuts])
    return tuple(each.astype(np.int32) for each in members)


@lru_cache(maxsize=256)
def _kinds_of_members(cuts: tuple[CutAxis, ...]) -> tuple[Array, int]:
    """(The kind of every member of a group by its coordinates alone, the number of kinds)."""
    code: Array = np.zeros(1, np.int64)
    codes = 1
    for places, kind in (_places(*each) for each in cuts):
        code = (code[:, None] * len(places) + kind).reshape(-1)
        codes *= len(places)
    return code, codes


def _first_of_each(code: Array, codes: int) -> Array:
    """The positions at which every code, a number below `codes`, comes first."""
    if codes > 16 * len(code):  # then sorting is faster than a table
        return np.unique(code, return_index=True)[1]
    first: Array = np.full(codes, -1, np.intp)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    return first[first >= 0]


@cache
def _places(parts: int, longer: int, extent: int, window: Window | None) -> tuple[Array, Array]:
    """Coordinates along an axis, one of every kind, and the kinds of all coordinates, numbered from 0.

    Rows of a block are read by at most `reach` blocks on either side of it. So coordinates that are at least
    so far from both ends of a run of equal blocks are of one kind, if blocks and rows of In shift alike.
    """
    every = np.arange(parts, dtype=np.int32)
    if window is None:
        return np.array(sorted({0, longer}), np.int32), (every >= (longer or parts)).astype(np.int64)
    if window.divisor > 1 or window.size != window.stride * extent or (longer and window.stride > 1):
        return every, every
    before, after = window.padding, window.span - window.stride - window.padding
    reach = -(-max(before, after, 0) // (window.stride * max(1, extent // parts)))
    kind = every.copy()
    for first, last in ((0, longer), (longer, parts)):  # blocks of one length
        kind[first + reach : max(0, last - reach)] = first + reach
    places = np.flatnonzero(kind == every).astype(np.int32)
    return places, np.searchsorted(places, kind)


def _shards(distribution: Distribution, tensor: Tensor) -> tuple[ShardShapes, ...]:
    """The dimensions along which shards of a tensor differ; none if all shards have one shape.

    Parts of rows that may have a halo all differ.
    """
    found: list[ShardShapes] = []
    cuts = distribution.shard_cuts[tensor]
    sizes = dict(zip(DIMS[tensor], distribution.nest.shapes[tensor], strict=True)) if cuts else {}
    between = 1
    for dim, parts in reversed(cuts):
        slices = getattr(distribution.grid, dim, 1)
        size, longer = sizes[dim] // slices, sizes[dim] % slices > 0
        short, shorter = size % parts, (size + longer) % parts
        if dim in SPATIAL and parts > 1:
            found.append(ShardShapes(between, parts, alike=False))
        elif short or shorter:
            found.append(ShardShapes(between, parts, short, shorter))
        between *= parts
    return tuple(found)


def padded(rows: Sequence[Array]) -> Array:
    """Rows of ranks as one array; shorter rows repeat their first rank."""
    found = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for at, row in enumerate(rows):
        found[at] = row[0]
        found[at, : len(row)] = row
    return found
