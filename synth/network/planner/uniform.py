"""One grid for all layers, as people run a strategy: the uniform grids of a network.

The best grids of single layers say little about a grid that suits all of them: a pooling moves no word on
most grids, and a convolution little more on many. So grids are ranked over the whole network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synth.base.array_kinds import kinds_of
from synth.layer.axes import PerAxis
from synth.network.grids.grid_table import grids_of
from synth.network.planner.candidates import GridCandidates

UNIFORM = 4  # uniform grids per strategy


def uniform_grids(
    candidates: Sequence[GridCandidates], layers: Sequence[int], axes: str, count: int = UNIFORM
) -> list[PerAxis]:
    """The grids of all processes that suit the network best and split no other axes than `axes`.

    candidates: one entry per class of layers. layers: class -> the number of its layers. A grid that more
    layers admit comes first; of equal ones, that with the lowest sum of lower bounds.
    """
    places = [each.grids.within(axes) for each in candidates]
    rows = np.concatenate([each.grids.rows[some] for each, some in zip(candidates, places, strict=True)])
    bounds = np.concatenate([each.grids.bounds[some] for each, some in zip(candidates, places, strict=True)])
    number = np.repeat(np.array(layers), list(map(len, places)))
    full = rows.prod(axis=1) == candidates[0].request.procs
    different, grid = kinds_of(rows[full].T)
    admitting = np.bincount(grid, weights=number[full])
    sums = np.bincount(grid, weights=(number * bounds)[full])
    first = np.lexsort((sums, -admitting))[:count]  # of equal ones in the order of the grids
    return grids_of(rows[full][different[first]])


def nearest(candidates: GridCandidates, grid: PerAxis, axes: str) -> PerAxis | None:
    """A grid itself, or the grid of a class that has most of its cuts; None if no grid splits `axes` only."""
    if grid in candidates.grids.places:
        return grid
    within = candidates.grids.within(axes)
    if not len(within):
        return None
    common = np.gcd(candidates.grids.rows[within], np.array(grid)).prod(axis=1)
    return candidates.grids.grid(within[common.argmax()])  # of equal ones, the cheapest
