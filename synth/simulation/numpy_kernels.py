"""The local kernels of the simulator: one block of the nest over numpy arrays, tap by tap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import SPATIAL
from synth.layer.intervals import Block, length
from synth.layer.nest import Nest
from synth.layer.passes import Pass

Values = NDArray[Any]


def convolve(nest: Nest, tile: Block, inputs: Values, ker: Values) -> Values:
    """Out tile `[b,g,k,d,h,w]` from the In rows `[b,g,c,d,h,w]` that it reads and Ker `[g,k,c,t,r,s]`."""
    windows = [nest.windows[axis] for axis in SPATIAL]
    sizes = [length(tile[axis]) for axis in SPATIAL]
    pads = [window.pads(*tile[axis]) for window, axis in zip(windows, SPATIAL, strict=True)]
    padded = np.pad(inputs, [(0, 0)] * 3 + pads)
    batch, groups = inputs.shape[:2]
    out = np.zeros((batch, groups, ker.shape[1], *sizes), dtype=inputs.dtype)
    for taps, rows in _taps(nest, tuple(sizes)):
        seen = padded[(slice(None),) * 3 + rows].reshape(batch, groups, inputs.shape[2], -1)
        out += (ker[(slice(None),) * 3 + taps] @ seen).reshape(out.shape)
    return out


def spread(nest: Nest, tile: Block, grad: Values, ker: Values) -> Values:
    """dIn tile: what the dOut tile `[b,g,k,d,h,w]` and Ker `[g,k,c,t,r,s]` add to the rows it reads."""
    batch, groups = grad.shape[:2]
    windows = [nest.windows[axis] for axis in SPATIAL]
    reaches = [window.reach(*tile[axis]) for window, axis in zip(windows, SPATIAL, strict=True)]
    pads = [window.pads(*tile[axis]) for window, axis in zip(windows, SPATIAL, strict=True)]
    frame = [before + high - low + after for (before, after), (low, high) in zip(pads, reaches, strict=True)]
    padded = np.zeros((batch, groups, ker.shape[2], *frame), dtype=grad.dtype)
    flat = grad.reshape(batch, groups, grad.shape[2], -1)
    for taps, rows in _taps(nest, grad.shape[3:]):
        weights = ker[(slice(None),) * 3 + taps].swapaxes(1, 2)
        padded[(slice(None),) * 3 + rows] += (weights @ flat).reshape(batch, groups, -1, *grad.shape[3:])
    inner = tuple(slice(before, size - after) for (before, after), size in zip(pads, frame, strict=True))
    return padded[(slice(None),) * 3 + inner]


def correlate(nest: Nest, tile: Block, grad: Values, inputs: Values) -> Values:
    """dKer tile `[g,k,c,t,r,s]` from the dOut tile `[b,g,k,d,h,w]` and the In rows `[b,g,c,d,h,w]`."""
    windows = [nest.windows[axis] for axis in SPATIAL]
    pads = [window.pads(*tile[axis]) for window, axis in zip(windows, SPATIAL, strict=True)]
    padded = np.pad(inputs, [(0, 0)] * 3 + pads)
    batch, groups, channels = inputs.shape[:3]
    kernels = [window.kernel for window in windows]
    out = np.zeros((groups, grad.shape[2], channels, *kernels), dtype=grad.dtype)
    flat = grad.reshape(batch, groups, grad.shape[2], -1)
    for taps, rows in _taps(nest, grad.shape[3:]):
        seen = padded[(slice(None),) * 3 + rows].reshape(batch, groups, channels, -1)
        out[(slice(None),) * 3 + taps] = (flat @ seen.swapaxes(2, 3)).sum(0)
    return out


def _taps(nest: Nest, sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Kernel positions, each with the padded rows that it meets for `sizes` output positions."""
    windows = [nest.windows[axis] for axis in SPATIAL]
    for taps in product(*(range(window.kernel) for window in windows)):
        yield (
            taps,
            tuple(
                slice(w.dilation * tap, w.dilation * tap + w.stride * (n - 1) + 1, w.stride)
                for w, tap, n in zip(windows, taps, sizes, strict=True)
            ),
        )


def run(pass_: Pass, nest: Nest, tile: Block, one: Values, other: Values) -> Values:
    """The local kernel of a pass: `one` and `other` are what it reads, in the order of `passes.reads`."""
    match pass_:
        case "forward":
            return convolve(nest, tile, one, other)
        case "backward-data":
            return spread(nest, tile, other, one)
        case "backward-filter":
            return correlate(nest, tile, other, one)


def reference(nest: Nest, one: Values, other: Values, pass_: Pass = "forward") -> Values:
    """The whole layer in one piece."""
    whole = {axis: (0, extent) for axis, extent in nest.extents._asdict().items()}
    return run(pass_, nest, whole, one, other)
