"""Ranks that stand for all ranks of a grid where words of a layer are counted.

Ranks whose boxes differ by a shift receive the same words. So of an axis one coordinate is enough for all
blocks of one length. Along a spatial axis it takes one inside each run of them, and those near its ends.
Where shards of a tensor are uneven, members of its group are of one kind if their shards have one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from synth.layer.axes import DIMS, LACKS, SPATIAL, TENSORS, Axis, Tensor, strides
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.network.grids.owned_boxes import Array, PlacedGrid
from synth.schedule.distribution import Distribution

SHAPES = 4  # shapes of shards along a dimension: of the longer slices, and of the others
# axes along which the members of a tensor's group differ; no group differs along g
GROUPS: tuple[tuple[Tensor | None, tuple[Axis, ...]], ...] = (
    (None, ("g",)),
    *((tensor, LACKS[tensor]) for tensor in TENSORS),
)


def ranks_of_kinds(placed: PlacedGrid, distribution: Distribution, tensors: Sequence[Tensor]) -> Array:
    """Ranks of a grid among which is one for every number of words of `tensors` that a rank receives."""
    grid, steps = placed.grid, strides(placed.grid, placed.order)
    ranks: Array = np.zeros(1, np.int32)
    for tensor, axes in GROUPS:
        split = [axis for axis in axes if getattr(grid, axis) > 1]
        if not split:
            continue
        kinds = [_kinds_along(distribution.nest, axis, getattr(grid, axis)) for axis in split]
        shards = _shards(distribution, tensor) if tensor is not None and tensor in tensors else []
        if not shards:
            for axis, (places, _) in zip(split, kinds, strict=True):
                ranks = (ranks[:, None] + places * np.int32(steps[axis])).reshape(-1)
            continue
        members: Array = np.arange(grid.of(tuple(split)), dtype=np.int32)
        offset: Array = np.zeros_like(members)
        code: Array = np.zeros(len(members), np.int64)
        beyond = len(members)
        for axis, (_, kind) in zip(split, kinds, strict=True):
            beyond //= len(kind)
            at = members // beyond % len(kind)
            offset, code = offset + at * np.int32(steps[axis]), code * len(kind) + kind[at]
        for step, shape in shards:
            code = code * (len(shape) + SHAPES) + shape[members // step % len(shape)]
        _, first = np.unique(code, return_index=True)
        ranks = (ranks[:, None] + offset[first]).reshape(-1)
    return ranks


def _kinds_along(nest: Nest, axis: Axis, parts: int) -> tuple[Array, Array]:
    window = nest.windows[axis] if axis in SPATIAL else None
    return _places(getattr(nest.extents, axis), window, parts)


@cache
def _places(extent: int, window: Window | None, parts: int) -> tuple[Array, Array]:
    """Coordinates along an axis, one of every kind, and the kinds of all coordinates.

    Rows of a block are read by at most `reach` blocks on either side of it. So coordinates that are at least
    so far from both ends of a run of equal blocks are of one kind, if blocks and rows of In shift alike.
    """
    every = np.arange(parts, dtype=np.int32)
    longer = extent % parts  # the first blocks are longer by one than the others
    if window is None:
        return np.unique([0, longer]).astype(np.int32), (every >= longer).astype(np.int64)
    if window.divisor > 1 or window.size != window.stride * extent or (longer and window.stride > 1):
        return every, every
    before, after = window.padding, window.span - window.stride - window.padding
    reach = -(-max(before, after, 0) // (window.stride * max(1, extent // parts)))
    kind = every.copy()
    for first, last in ((0, longer), (longer, parts)):  # blocks of one length
        kind[first + reach : max(0, last - reach)] = first + reach
    return np.unique(kind), kind


def _shards(distribution: Distribution, tensor: Tensor) -> list[tuple[int, Array]]:
    """The dimensions along which shards of a tensor differ: members between two parts, shape of every part.

    Parts of rows that may have a halo all differ. Empty if all shards have one shape.
    """
    found: list[tuple[int, Array]] = []
    cuts = distribution.shard_cuts[tensor]
    sizes = dict(zip(DIMS[tensor], distribution.nest.shapes[tensor], strict=True)) if cuts else {}
    step = 1
    for dim, parts in reversed(cuts):
        slices = getattr(distribution.grid, dim, 1)
        size, longer = sizes[dim] // slices, sizes[dim] % slices > 0
        short, shorter = size % parts, (size + longer) % parts  # parts with one position more
        if dim in SPATIAL and parts > 1:
            found.append((step, np.arange(parts)))
        elif short or shorter:
            index = np.arange(parts)
            found.append((step, (index < short).astype(np.int64) * 2 + (index < shorter)))
        step *= parts
    return found


def padded(rows: Sequence[Array]) -> Array:
    """Rows of ranks as one array; shorter rows repeat their first rank."""
    found = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for at, row in enumerate(rows):
        found[at] = row[0]
        found[at, : len(row)] = row
    return found
