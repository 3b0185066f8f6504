"""Ranks that stand for all ranks of a grid where words of a layer are counted.

Along an axis that cuts evenly, ranks differ by a shift of their boxes only: they receive the same words. So
one coordinate of such an axis is enough, and along a spatial axis, one inside and those near both ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, LACKS, SPATIAL, Axis, Tensor, strides
from synth.layer.nest import Nest
from synth.network.planner.owned_boxes import PlacedGrid
from synth.schedule.distribution import Distribution

CHANNELS_AND_SAMPLES = frozenset(AXES) - frozenset(SPATIAL)


def ranks_of_kinds(
    placed: PlacedGrid, distribution: Distribution, tensors: Sequence[Tensor]
) -> NDArray[np.int32]:
    """Ranks of a grid among which is one for every number of words of `tensors` that a rank receives."""
    steps = strides(placed.grid, placed.order)
    uneven = {t for t in tensors if not _even_shards(distribution, t)}
    ranks = np.zeros(1, np.int32)
    for axis, parts in zip(AXES, placed.grid, strict=True):
        if parts > 1:
            lacking = any(axis in LACKS[tensor] for tensor in uneven)
            places = np.arange(parts, dtype=np.int32) if lacking else _places(distribution.nest, axis, parts)
            if len(places) > 1:
                ranks = (ranks[:, None] + places * np.int32(steps[axis])).reshape(-1)
    return ranks


def _places(nest: Nest, axis: Axis, parts: int) -> NDArray[np.int32]:
    """Coordinates along an axis, one of every kind. Blocks and shards shift alike from one to the next.

    Rows of a block are read by at most `reach` blocks on either side of it. So coordinates that are at least
    so far from both ends are of one kind.
    """
    every = np.arange(parts, dtype=np.int32)
    extent = getattr(nest.extents, axis)
    if extent % parts:
        return every
    if axis not in SPATIAL:
        return every[:1]
    window = nest.windows[axis]
    if window.divisor > 1 or window.size != window.stride * extent:
        return every
    before, after = window.padding, window.span - window.stride - window.padding
    reach = -(-max(before, after, 0) // (window.stride * extent // parts))
    return every if parts <= 2 * reach + 1 else np.concatenate([every[: reach + 1], every[parts - reach :]])


def _even_shards(distribution: Distribution, tensor: Tensor) -> bool:
    """Whether all shards of a tensor have one shape, and whole rows of the axes that may have a halo."""
    extents, grid = distribution.nest.extents, distribution.grid
    for dim, parts in distribution.shard_cuts[tensor]:
        if dim not in CHANNELS_AND_SAMPLES or getattr(extents, dim) % (getattr(grid, dim) * parts):
            return False
    return True


def padded(rows: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Rows of ranks as one array; shorter rows repeat their first rank."""
    found = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for at, row in enumerate(rows):
        found[at] = row[0]
        found[at, : len(row)] = row
    return found
