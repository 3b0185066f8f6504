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
    """Out rows `[b,g,k,d,h,w]` of a tile from its In rows `[b,g,c,d,h,w]` and Ker `[g,k,c,t,r,s]`."""
    padded = _padded(nest, tile, inputs)
    batch, groups = inputs.shape[:2]
    out = np.zeros((batch, groups, ker.shape[1], *_positions(nest, tile)), dtype=inputs.dtype)
    for taps, rows in _taps(nest, out.shape[3:]):
        seen = padded[(slice(None),) * 3 + rows].reshape(batch, groups, inputs.shape[2], -1)
        out += (ker[(slice(None),) * 3 + taps] @ seen).reshape(out.shape)
    return out


def spread(nest: Nest, tile: Block, grad: Values, ker: Values) -> Values:
    """dIn tile: what the dOut rows `[b,g,k,d,h,w]` of a tile and Ker `[g,k,c,t,r,s]` add to its In rows."""
    batch, groups = grad.shape[:2]
    rows_read = [length(nest.rows(axis, tile[axis])[0]) for axis in SPATIAL]
    pads = [nest.pads(axis, tile[axis]) for axis in SPATIAL]
    frame = [before + rows + after for (before, after), rows in zip(pads, rows_read, strict=True)]
    padded = np.zeros((batch, groups, ker.shape[2], *frame), dtype=grad.dtype)
    flat = grad.reshape(batch, groups, grad.shape[2], -1)
    for taps, rows in _taps(nest, grad.shape[3:]):
        weights = ker[(slice(None),) * 3 + taps].swapaxes(1, 2)
        padded[(slice(None),) * 3 + rows] += (weights @ flat).reshape(batch, groups, -1, *grad.shape[3:])
    return _surrounded(padded, [(-before, -after) for before, after in pads])


def correlate(nest: Nest, tile: Block, grad: Values, inputs: Values) -> Values:
    """dKer tile `[g,k,c,t,r,s]` from the dOut rows `[b,g,k,d,h,w]` and the In rows `[b,g,c,d,h,w]`."""
    padded = _padded(nest, tile, inputs)
    batch, groups, channels = inputs.shape[:3]
    kernels = [window.kernel for window in nest.windows.values()]
    out = np.zeros((groups, grad.shape[2], channels, *kernels), dtype=grad.dtype)
    flat = grad.reshape(batch, groups, grad.shape[2], -1)
    for taps, rows in _taps(nest, grad.shape[3:]):
        seen = padded[(slice(None),) * 3 + rows].reshape(batch, groups, channels, -1)
        out[(slice(None),) * 3 + taps] = (flat @ seen.swapaxes(2, 3)).sum(0)
    return out


def _positions(nest: Nest, tile: Block) -> list[int]:
    """Output rows of a tile along the spatial axes."""
    return [length(nest.rows(axis, tile[axis])[1]) for axis in SPATIAL]


def _padded(nest: Nest, tile: Block, inputs: Values) -> Values:
    return _surrounded(inputs, [nest.pads(axis, tile[axis]) for axis in SPATIAL])


def _surrounded(values: Values, zeros: list[tuple[int, int]]) -> Values:
    """Spatial dimensions with zeros before and after them; negative numbers cut rows off."""
    added = [(max(0, before), max(0, after)) for before, after in zeros]
    wide = np.pad(values, [(0, 0)] * 3 + added)
    sizes = zip(zeros, wide.shape[3:], strict=True)
    kept = (slice(max(0, -before), size - max(0, -after)) for (before, after), size in sizes)
    return wide[(slice(None),) * 3 + tuple(kept)]


def _taps(nest: Nest, sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Kernel positions, each with the padded rows that it meets for `sizes` output positions."""
    windows = [nest.turn(nest.turned).windows[axis] for axis in SPATIAL]
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
