"""The local kernel of the simulator: one block of the nest over numpy arrays, tap by tap."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.axes import SPATIAL
from synth.intervals import Block, length
from synth.nest import Nest

Values = NDArray[Any]


def convolve(nest: Nest, tile: Block, inputs: Values, ker: Values) -> Values:
    """Out tile `[b,g,k,d,h,w]` from the In rows `[b,g,c,d,h,w]` that it reads and Ker `[g,k,c,t,r,s]`."""
    windows = [nest.windows[axis] for axis in SPATIAL]
    sizes = [length(tile[axis]) for axis in SPATIAL]
    pads = [window.pads(*tile[axis]) for window, axis in zip(windows, SPATIAL, strict=True)]
    padded = np.pad(inputs, [(0, 0)] * 3 + pads)
    batch, groups = inputs.shape[:2]
    out = np.zeros((batch, groups, ker.shape[1], *sizes), dtype=inputs.dtype)
    for taps in product(*(range(window.kernel) for window in windows)):
        rows = tuple(
            slice(w.dilation * tap, w.dilation * tap + w.stride * (n - 1) + 1, w.stride)
            for w, tap, n in zip(windows, taps, sizes, strict=True)
        )
        seen = padded[(slice(None),) * 3 + rows].reshape(batch, groups, inputs.shape[2], -1)
        out += (ker[(slice(None),) * 3 + taps] @ seen).reshape(out.shape)
    return out


def reference(nest: Nest, inputs: Values, ker: Values) -> Values:
    """The whole layer in one piece."""
    whole = {axis: (0, extent) for axis, extent in nest.extents._asdict().items()}
    return convolve(nest, whole, inputs, ker)
