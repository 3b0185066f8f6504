"""A lower bound that sees halos: the surface of regions of signals, images and volumes (docs/bounds.md).

A process that works on a region of positions shares multiply-adds with its neighbours along the border of
the region. So it receives halos of In or of Out, however it shapes the region, and whatever channels it
takes. The bound adds these words to the universal bound at n = 1. It is for strides and dilations of 1 and
odd kernels; groups, and dimensions with a kernel of 1, count as samples. `surface_words` alone also
holds where weights are everywhere, as in inference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.regions import Reach, Region, line, longest_short, region
from synth.bounds.squares import square_region
from synth.bounds.universal import water_fill_point
from synth.layer.axes import SPATIAL
from synth.layer.nest import Nest


def surface_words(nest: Nest, procs: int, most_work: int) -> float:
    """The least words of In and Out that all processes access beyond one copy of each: Δ of docs/bounds.md.

    `most_work`: the most multiply-adds of one process, padding excluded. 0 where the proof does not apply.
    """
    windows = [(nest.windows[a], getattr(nest.extents, a)) for a in SPATIAL if nest.windows[a].kernel > 1]
    plain = all(w.stride == w.dilation == 1 and w.kernel % 2 for w, _ in windows)
    if not plain or not windows or nest.strides > 1:
        return 0.0
    reaches = [Reach(w.kernel, w.size, outputs, w.padding) for w, outputs in windows]
    c, k = nest.extents.c, nest.extents.k
    sides = (
        _Side(c, k, nest.words["In"], nest.words["Out"]),
        _Side(k, c, nest.words["Out"], nest.words["In"]),
    )
    turned = [reach.turned() for reach in reaches]
    found = [
        _least_words(*each, nest.real_work, procs, most_work)
        for each in zip(sides, (reaches, turned), strict=True)
    ]
    return max(found) * (1 - 1e-9)


class _Side(NamedTuple):
    """The tensor that is read and the one that is written, or the other way round."""

    channels: int
    filters: int
    read: int  # words of In
    written: int  # words of Out


def _least_words(side: _Side, reaches: Sequence[Reach], work: int, procs: int, cap: int) -> float:
    """`surface_words` from the lines of outputs; from those of inputs if the sides are exchanged."""
    c, k, axes = side.channels, side.filters, len(reaches)
    lines = [line(reach, c / k) for reach in reaches]
    plain = region(lines)
    samples = side.written // (k * sum(plain.kinds.values()))
    edges = sum(d * n for (d, _), n in plain.kinds.items())
    if any(d == 0 for d, _ in plain.kinds) or work != c * k * samples * edges:
        return 0.0
    best = 0.0
    for step in range(-3, 7):
        size = cap / (c * k * plain.taps) * 2 ** (step / 2)
        short = longest_short(axes, size)
        shapes = [
            square_region(reaches, c / k, short),
            region(lines, short) if short >= plain.short else None,
        ]
        for shape in filter(None, shapes):
            charge = samples * shape.charges(c / k)
            linear, square = shape.tangent(axes, size)
            for weight in _weights(shape):
                over = samples * shape.over(weight, c / k)
                right = linear * work / shape.taps - c * k * (charge + (procs - 1) * over)
                best = max(best, _excess(side, work, cap, shape.taps, (weight, square, right)))
    return best


def _weights(shape: Region) -> list[float]:
    """Up to 16 weights per word of Out beyond one copy, from that of a position inside the image upwards."""
    both = [*shape.kinds, *shape.inputs]
    values = sorted({float(shape.taps), *(d + q for d, q in both if d + q > shape.taps)})
    return [values[i * (len(values) - 1) // 15] for i in range(16)] if len(values) > 16 else values


def _excess(side: _Side, work: int, cap: int, taps: int, row: tuple[float, float, float]) -> float:
    """The least Δ >= 0 with C·weight·Δ + square·Γ(Δ) >= right, where Γ(Δ) >= Σ I_p·O_p over the processes."""
    weight, square, right = row
    c, k = side.channels, side.filters
    pad_in, pad_out = side.read - work / (k * taps), side.written - work / (c * taps)
    pad = pad_in + pad_out
    fixed = (
        cap * work / (c * k * taps**2) + cap * (pad_in / (c * taps) + pad_out / (k * taps)) + pad * pad / 4
    )
    a = square / 4
    b = c * weight + square * (cap / (taps * min(c, k)) + pad / 2)
    rest = right - square * fixed
    return 0.0 if rest <= 0 else 2 * rest / (b + math.sqrt(b * b + 4 * a * rest))


def surface_bound(nest: Nest, procs: int, most_work: int) -> float:
    """Lower bound on received words per process, on average, with the surface of regions. 0 if not proved.

    Assumptions and arguments are those of `universal.universal_bound`, for any memory.
    """
    if procs < 1 or most_work * procs < nest.real_work:
        return 0.0
    cap = min(most_work, max(1, nest.real_work))
    out, inp, ker = (float(nest.words[tensor]) for tensor in ("Out", "In", "Ker"))
    more = surface_words(nest, procs, cap)
    volume = weighted_work(nest, 2 / 3) ** 3 / cap
    x_out, x_in, x_ker = water_fill_point((out, inp, ker), volume)
    if more > x_out + x_in - out - inp:
        low, high = sorted((out, inp))
        most = (low + more) * high if more <= high - low else ((low + high + more) / 2) ** 2
        total = out + inp + more + max(ker, volume / most)
    else:
        total = x_out + x_in + x_ker
    return max(0.0, (total * (1 - 1e-12) - out - inp - ker) / procs)
