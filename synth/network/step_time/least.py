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
    common = np.ones((len(source), len(target)))
    for at in range(source.shape[1] - 1):
        common = common * np.minimum(source[:, at, None], target[:, at])
    there = np.maximum(0.0, words / target[:, -1] - common)
    return there + np.maximum(0.0, words / source[:, -1, None] - common) if back else there
