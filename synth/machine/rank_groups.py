"""The placement of the groups of a process grid on the levels of a machine.

Nodes hold consecutive ranks. So the order of the grid axes, whose last one varies fastest, decides which
axes are inside a node. The order does not change the received words.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from synth.layer.axes import AXES, ROW_MAJOR, Axis, Order, PerAxis, strides
from synth.machine.collectives import Group
from synth.machine.hierarchy import Machine

CHANNELS_SWAPPED: Order = ("b", "g", "d", "h", "w", "k", "c")
SAMPLES_INSIDE: Order = ("g", "c", "k", "d", "h", "w", "b")
ROWS_INSIDE: Order = ("b", "g", "c", "k", "d", "h", "w")
ORDERS: tuple[Order, ...] = (ROW_MAJOR, CHANNELS_SWAPPED, ROWS_INSIDE, SAMPLES_INSIDE)
SAMPLED = 64  # limit of groups along the same axes that are examined; they differ little


@lru_cache(maxsize=65536)
def _distinct(grid: PerAxis, orders: tuple[Order, ...]) -> tuple[Order, ...]:
    by_strides: dict[tuple[int, ...], Order] = {}
    for order in orders:
        step = strides(grid, order)
        by_strides.setdefault(tuple(step[axis] for axis in AXES if getattr(grid, axis) > 1), order)
    return tuple(by_strides.values())


def distinct_orders(grid: PerAxis, orders: tuple[Order, ...] = ORDERS) -> list[Order]:
    """The orders without those that place the ranks of a grid like an earlier one."""
    return list(_distinct(grid, orders))


def group_of(machine: Machine, grid: PerAxis, order: Order, axes: tuple[Axis, ...]) -> Group:
    """The worst group of ranks that differ only along `axes`: the one in the most units of each level."""
    step = strides(grid, order)
    varied = tuple((getattr(grid, a), step[a]) for a in axes if getattr(grid, a) > 1)
    rest = tuple((getattr(grid, a), step[a]) for a in AXES if a not in axes and getattr(grid, a) > 1)
    sizes = tuple(level.ranks for level in machine.levels)
    return _group(sizes, varied, rest, grid.size)


@lru_cache(maxsize=65536)
def _group(
    sizes: tuple[int | None, ...],
    varied: tuple[tuple[int, int], ...],
    rest: tuple[tuple[int, int], ...],
    procs: int,
) -> Group:
    size = math.prod(count for count, _ in varied)
    aligned = [size if ranks is None or ranks >= procs else _aligned(varied, ranks) for ranks in sizes]
    flows = tuple(float(min(procs, below or procs)) for below in (1, *sizes[:-1]))
    if all(aligned):
        return Group((*aligned[:-1], size), flows)
    members, bases = _offsets(varied), _offsets(rest)
    if len(bases) > SAMPLED:
        bases = bases[np.linspace(0, len(bases) - 1, SAMPLED).astype(int)]
    inside = [
        len(members) if ranks is None or ranks >= procs else _inside(members, bases, ranks) for ranks in sizes
    ]
    inside[-1] = len(members)
    return Group(tuple(inside), flows)


def _aligned(varied: tuple[tuple[int, int], ...], ranks: int) -> int:
    """Members per unit if every axis divides the units evenly or is divided by them, else 0."""
    inside = 1
    for count, stride in varied:
        if stride % ranks == 0:
            continue
        if ranks % (stride * count) == 0:
            inside *= count
        elif ranks % stride == 0 and stride * count % ranks == 0:
            inside *= ranks // stride
        else:
            return 0
    return inside


def _offsets(axes: tuple[tuple[int, int], ...]) -> np.ndarray:
    """The ranks of all coordinates along some axes, given as (count, stride), relative to the first one."""
    ranks = np.zeros(1, dtype=np.int64)
    for count, stride in axes:
        ranks = (ranks[:, None] + np.arange(count) * stride).ravel()
    return ranks


def _inside(members: np.ndarray, bases: np.ndarray, ranks: int) -> int:
    """Members per unit, on average, of the group that is in the most units."""
    units = max(len(np.unique((members + base) // ranks)) for base in bases)
    return -(-len(members) // units)


def split_over(machine: Machine, procs: int) -> Group:
    """The group of all ranks."""
    return group_of(machine, PerAxis(b=procs), ROW_MAJOR, ("b",))
