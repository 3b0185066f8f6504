"""A lower bound that sees halos: the surface of regions of signals, images and volumes (docs/bounds.md).

A process that works on a region of positions shares multiply-adds with its neighbours along the border of
the region. So it receives halos of In or of Out, however it shapes the region, and whatever channels it
takes. The bound adds these words to the universal bound at n = 1. It is for strides and dilations of 1, odd
kernels and one group; dimensions with a kernel of 1 count as samples. `surface_words` alone also holds where
weights are everywhere, as in inference.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.universal import water_fill_point
from synth.layer.axes import SPATIAL
from synth.layer.nest import Nest


@dataclass(frozen=True)
class Line:
    """Lines of output positions along one axis, seen from lines of input positions.

    A line with a outputs of a region costs at least `ends`·min(a, `short`)/`short`, less what its positions
    at the border of the image are charged. `kinds` counts positions by (degree, charge): the inputs that a
    position reads, and its charge.
    """

    taps: int
    ends: float
    short: float
    kinds: Counter[tuple[int, float]]


class Reach(NamedTuple):
    """One axis: output x reads the inputs x - before .. x - before + taps - 1 that are in [0, size)."""

    taps: int
    size: int
    outputs: int
    before: int

    def turned(self) -> Reach:
        """The same pairs with inputs and outputs exchanged."""
        return Reach(self.taps, self.outputs, self.size, self.taps - 1 - self.before)


def line(reach: Reach, ratio: float) -> Line:
    """The line of an axis with an odd number of taps. `ratio`: κ, input channels by filters."""
    taps, outputs = reach.taps, reach.outputs
    sums = [
        sum(_cost(min(a, j, a + taps - j), taps, ratio) for j in range(1, a + taps)) for a in range(1, taps)
    ]
    ends = 2 * sum(_cost(j, taps, ratio) for j in range(1, taps))
    short = max([1.0, *(a * ends / total for a, total in enumerate(sums, 1) if total < ends)])
    low = min(2 * taps, outputs)
    high = max(low, outputs - 2 * taps)
    kinds: Counter[tuple[int, float]] = Counter({(taps, 0.0): high - low})
    for x in itertools.chain(range(low), range(high, outputs)):
        kinds[kind(reach, ratio, x)] += 1
    return Line(taps, ends, short, +kinds)


def _cost(inside: int, degree: int, ratio: float) -> float:
    """The least cost of an input that `inside` outputs of a region and `degree` outputs in all read."""
    return min(ratio * (degree - inside), inside)


def kind(reach: Reach, ratio: float, x: int) -> tuple[int, float]:
    """(inputs that output x reads, its charge): what lines lose at the border of the image, per position."""
    taps, degree, charge = reach.taps, 0, 0.0
    for y in range(x - reach.before, x - reach.before + taps):
        readers = min(reach.outputs, y + reach.before + 1) - max(0, y + reach.before - taps + 1)
        real = 0 <= y < reach.size
        degree += real
        charge += max(
            (_cost(i, taps, ratio) - (_cost(i, readers, ratio) if real else 0.0)) / i
            for i in range(1, readers + 1)
        )
    return degree, charge


@dataclass(frozen=True)
class Region:
    """What the lines of all axes give for a region: costs, and its positions by (degree, charge)."""

    taps: int
    scale: float  # w: a region of m positions of n axes costs w·min(n·m^(1-1/n), m/short)
    short: float
    kinds: Counter[tuple[int, float]]

    def tangent(self, axes: int, size: float) -> tuple[float, float]:
        """(α, β): a region of m positions costs at least α·m - β·m², with equality at m = τ, the `size`.

        For τ from the one on of which `short` is the `longest_short`.
        """
        linear = (axes + 1) * self.scale / size ** (1 / axes)
        return linear, linear / ((axes + 1) * size)


def longest_short(axes: int, size: float) -> float:
    """The largest `short` with which `Region.tangent` holds at τ, the `size`."""
    return {1: size / 2, 2: math.sqrt(size) / 3, 3: math.cbrt(size) / 4}[axes]


def region(lines: Sequence[Line], short: float = 0.0) -> Region:
    """The regions of signals, images or volumes with these lines: the mean of what their axes give.

    short: of lines, if it is more than theirs. It lowers the charges of lines at the border of an image, as
    these meet fewer lines of inputs.
    """
    axes, short = len(lines), max(short, *(each.short for each in lines))
    taps = math.prod(each.taps for each in lines)
    kinds: Counter[tuple[int, float]] = Counter()
    for along in itertools.product(*(each.kinds.items() for each in lines)):
        degrees = [degree for (degree, _), _ in along]
        charge = 0.0
        for axis, (each, ((_, own), _)) in enumerate(zip(lines, along, strict=True)):
            across, met = taps // each.taps, math.prod(degrees[:axis] + degrees[axis + 1 :])
            charge += across * own + each.ends / short * (across - met)
        kinds[math.prod(degrees), charge / axes] += math.prod(number for _, number in along)
    scale = min(taps // each.taps * each.ends for each in lines) / axes
    return Region(taps, scale, short, kinds)


def surface_words(nest: Nest, procs: int, most_work: int) -> float:
    """The least words of In and Out that all processes access beyond one copy of each: Δ of docs/bounds.md.

    `most_work`: the most multiply-adds of one process, padding excluded. 0 where the proof does not apply.
    """
    windows = [(nest.windows[a], getattr(nest.extents, a)) for a in SPATIAL if nest.windows[a].kernel > 1]
    plain = all(w.stride == w.dilation == 1 and w.kernel % 2 for w, _ in windows)
    if nest.extents.g > 1 or not plain or not windows or nest.strides > 1:
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
        if short < plain.short:
            continue
        shape = region(lines, short)
        charge = samples * sum(q * n for (_, q), n in shape.kinds.items())
        linear, square = shape.tangent(axes, size)
        for weight in _weights(shape):
            over = samples * sum(n * max(0.0, d + q - weight) for (d, q), n in shape.kinds.items())
            right = linear * work / shape.taps - c * k * (charge + (procs - 1) * over)
            best = max(best, _excess(side, work, cap, shape.taps, (weight, square, right)))
    return best


def _weights(shape: Region) -> list[float]:
    """Up to 16 weights per word of Out beyond one copy, from that of a position inside the image upwards."""
    values = sorted({float(shape.taps), *(d + q for d, q in shape.kinds if d + q > shape.taps)})
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
