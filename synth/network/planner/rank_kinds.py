"""Ranks that stand for all ranks of a grid where words of a layer are counted.

Along an axis that cuts evenly, ranks differ by a shift of their boxes only: they receive the same words. So
one coordinate of such an axis is enough.
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
        lacking = any(axis in LACKS[tensor] for tensor in uneven)
        if parts > 1 and (lacking or not _even(distribution.nest, axis, parts)):
            ranks = (ranks[:, None] + np.arange(parts, dtype=np.int32) * steps[axis]).reshape(-1)
    return ranks


def _even(nest: Nest, axis: Axis, parts: int) -> bool:
    """Whether the blocks along an axis, and the rows that they read, differ by a shift only."""
    extent = getattr(nest.extents, axis)
    if extent % parts:
        return False
    if axis not in SPATIAL:
        return True
    window = nest.windows[axis]
    disjoint = window.span == window.stride and window.padding == 0 and window.divisor == 1
    return disjoint and not nest.turned and window.size == window.stride * extent


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
