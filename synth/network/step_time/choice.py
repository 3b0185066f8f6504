"""The choice of options of all layers with the fewest seconds, redistributions included, and a lower bound.

In the bound, every layer has all placed grids of its family. A redistribution moves at least what boxes of
such sizes cannot have in common. Over a forest of edges the cheapest choice is found exactly
(`network.forest`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, SPATIAL, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.network.solve import Pairs, Progress, Solution, Table, evaluate, solve
from synth.network.step_time.layer_times import Seconds
from synth.network.step_time.step import PLANNED_PRICES, LayerSeconds, StepSeconds

Allowed = Callable[[Sequence[int]], Sequence[bool]]  # options of all layers -> whether weights may be whole
Sizes = NDArray[np.int64]


@dataclass(frozen=True)
class TimedStep:
    """The seconds of a chosen step by layer, and which layers hold whole weights on every rank."""

    layers: tuple[LayerSeconds, ...]
    whole: tuple[bool, ...]


def terms(
    step: StepSeconds, moved: Sequence[Table], pairs: Pairs, price: float
) -> tuple[list[Table], dict[tuple[int, int], Table]]:
    """(layer -> seconds by option, pair of layers -> seconds), with redistributions, at a price of buckets.

    moved, pairs: of the redistributions alone.
    """
    own, near = step.terms(step.whole_where_cheaper(price), price)
    joined = dict(pairs)
    for key, table in near.items():
        joined[key] = joined[key] + table if key in joined else table
    return [one + other for one, other in zip(own, moved, strict=True)], joined


def cheapest(
    step: StepSeconds,
    moved: Sequence[Table],
    pairs: Pairs,
    allowed: Allowed,
    method: str,
    progress: Progress | None = None,
) -> Solution:
    """The best choice of some prices of buckets; without whole weights there are none, and it is exact."""
    best: Solution | None = None
    for price in PLANNED_PRICES if any(step.weighted) else (0.0,):
        found = solve(*terms(step, moved, pairs, price), method, progress)
        cost = step.seconds(found.chosen, step.weights(found.chosen, allowed(found.chosen)))
        cost += evaluate(moved, pairs, found.chosen)
        if best is None or cost < best.cost:
            best = Solution(found.chosen, cost, min(found.bound, cost), found.method)
    assert best is not None
    return best


def timed(step: StepSeconds, chosen: Sequence[int], allowed: Allowed) -> TimedStep:
    """The seconds of a choice by layer."""
    whole = step.weights(chosen, allowed(chosen))
    return TimedStep(tuple(step.by_layer(chosen, whole)), whole)


def box_sizes(nest: Nest, grids: Sequence[PerAxis], tensor: Tensor) -> Sizes:
    """By grid: the most positions of a rank's slice along (b, channel, d, h, w), and the number of ranks."""
    parts = PerAxis(*np.array(grids, np.int64).reshape(-1, len(AXES)).T)
    extents, inner = nest.extents, "c" if tensor == "In" else "k"
    width = getattr(extents, inner)
    groups = -(-extents.g // parts.g)
    channels = np.where(groups > 1, groups * width, -(-width // getattr(parts, inner)))
    framed = nest.framed(tensor)
    rows = (
        -(-(nest.windows[axis].size if axis in framed else getattr(extents, axis)) // getattr(parts, axis))
        for axis in SPATIAL
    )
    found: Sizes = np.stack([-(-extents.b // parts.b), channels, *rows, np.array(parts.size)], axis=1)
    return found


def least_moved(source: Sizes, target: Sizes, words: int, back: bool) -> Seconds:
    """Lower bounds of the words that the most-receiving rank receives, there (and back), for all pairs.

    words: of the tensor. On average a rank of the target wants words / ranks; it has at most the product of
    the shorter sides. The same holds on the way back.
    """
    one, other = source.astype(np.float64), target.astype(np.float64)
    common, shorter = np.ones((2, len(one), len(other)))  # tables of millions of pairs: few are made
    for at in range(one.shape[1] - 1):
        if max(one[:, at].max(initial=0), other[:, at].max(initial=0)) > 1:
            common *= np.minimum(one[:, at, None], other[:, at], out=shorter)
    there = np.subtract(words / other[:, -1], common, out=shorter)
    np.maximum(there, 0.0, out=there)
    if back:
        again = np.subtract(words / one[:, -1, None], common, out=common)
        there += np.maximum(again, 0.0, out=again)
    return there
