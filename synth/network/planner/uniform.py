"""One grid for all layers, as people run a strategy: the uniform grids of a network.

The best grids of single layers say little about a grid that suits all of them: a pooling moves no word on
most grids, and a convolution little more on many. So grids are ranked over the whole network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from synth.layer.axes import AXES, PerAxis
from synth.network.planner.candidates import GridCandidates

UNIFORM = 4  # uniform grids per strategy


def uniform_grids(
    candidates: Sequence[GridCandidates], layers: Sequence[int], axes: str, count: int = UNIFORM
) -> list[PerAxis]:
    """The grids of all processes that suit the network best and split no other axes than `axes`.

    candidates: one entry per class of layers. layers: class -> the number of its layers. A grid that more
    layers admit comes first; of equal ones, that with the lowest sum of lower bounds.
    """
    admitting: dict[PerAxis, int] = {}
    bounds: dict[PerAxis, float] = {}
    for each, number in zip(candidates, layers, strict=True):
        for grid in each.within(axes):
            if grid.size == each.request.procs:
                admitting[grid] = admitting.get(grid, 0) + number
                bounds[grid] = bounds.get(grid, 0.0) + number * each.lower_bounds[grid]
    return sorted(admitting, key=lambda grid: (-admitting[grid], bounds[grid], grid))[:count]


def nearest(candidates: GridCandidates, grid: PerAxis, axes: str) -> PerAxis | None:
    """A grid itself, or the grid of a class that has most of its cuts; None if no grid splits `axes` only."""
    if grid in candidates.lower_bounds:
        return grid
    within = candidates.within(axes)
    return max(within, key=lambda each: _common(each, grid), default=None)  # of equal ones, the cheapest


def _common(one: PerAxis, other: PerAxis) -> int:
    return math.prod(map(math.gcd, one, other))


def splits_only(grid: PerAxis, axes: str) -> bool:
    """Whether a grid splits no other axes than `axes`."""
    return all(parts == 1 or axis in axes for axis, parts in zip(AXES, grid, strict=True))
