"""A lower bound of the seconds of a step, redistributions included.

Every layer has all placed grids of its family. A redistribution moves at least what boxes of such sizes
cannot have in common. Over a forest of edges the cheapest choice is found exactly (`network.forest`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, SPATIAL, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.network.step_time.layer_times import Seconds

Sizes = NDArray[np.int64]


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
