"""A lower bound that sees halos: the surface of regions of signals, images and volumes (docs/bounds.md).

A process that works on a region of positions shares multiply-adds with its neighbours along the border of
the region. So it receives halos of In or of Out, however it shapes the region, and whatever channels it
takes. The bound adds these words to the universal bound at n = 1. Groups, dimensions with a kernel of 1, and
residue classes of a dilation count as samples. `surface_words` alone also holds where weights are everywhere,
as in inference, and where there are none, as in pooling.

The words follow from four numbers, a `Cut`. Floats choose it; `words_of` computes in fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.regions import Line, Number, Part, Region, line, longest_short, parts, region
from synth.bounds.squares import square_region
from synth.bounds.universal import water_fill_point
from synth.layer.axes import SPATIAL
from synth.layer.nest import Nest

MOST_TAPS = 32  # of an axis
MOST_KINDS = 2**13  # of positions of a region, by what they read


class Cut(NamedTuple):
    """What the proof of the words of one layer needs."""

    turned: bool  # regions of inputs, not of outputs
    squares: bool  # the regions of windows of 3 by 3
    side: Fraction  # of the regions at which the tangent touches
    weight: Fraction  # t of docs/bounds.md


def surface_words(nest: Nest, procs: int, most_work: int) -> int:
    """The least words of In and Out that all processes access beyond one copy of each: Δ of docs/bounds.md.

    `most_work`: the most multiply-adds of one process, padding excluded. 0 where the proof does not apply.
    """
    cut = surface_cut(nest, procs, most_work)
    return 0 if cut is None else words_of(nest, procs, most_work, cut)


@lru_cache(maxsize=4096)
def surface_cut(nest: Nest, procs: int, most_work: int) -> Cut | None:
    """The cut that proves the most words, as far as floating point tells; None where nothing is proved."""
    best, found = 0.0, None
    for turned in (False, True):
        pairs = _pairs(nest, turned)
        if pairs is None:
            continue
        ratio, axes = float(pairs.ratio), len(pairs.axes)
        lines = [line(axis, ratio) for axis in pairs.axes]
        if math.prod(len(each.kinds) for each in lines) > MOST_KINDS:
            continue
        numbers = [float(each) for each in pairs.numbers(most_work)]
        for step in range(-3, 7):
            size = most_work / (pairs.channels * pairs.filters * pairs.taps) * 2 ** (step / 2)
            side = _rounded(size ** (1 / axes))
            for squares in (True, False):
                shape = _shape(pairs, squares, float(side), ratio, lines)
                if shape is None:
                    continue
                for weight in _weights(shape):
                    a, b, rest = _row(pairs, procs, numbers, shape, float(side), ratio, weight)
                    root = 0.0 if rest <= 0 else 2 * rest / (b + math.sqrt(b * b + 4 * a * rest))
                    if root > best:
                        best, found = root, Cut(turned, squares, side, Fraction(weight))
    return found


def words_of(nest: Nest, procs: int, most_work: int, cut: Cut) -> int:
    """The words that a cut proves, in exact arithmetic; 0 if it proves nothing."""
    pairs = _pairs(nest, cut.turned)
    if pairs is None or cut.side <= 0 or cut.weight < pairs.taps:
        return 0
    lines = [line(axis, pairs.ratio) for axis in pairs.axes]
    shape = _shape(pairs, cut.squares, cut.side, pairs.ratio, lines)
    if shape is None:
        return 0
    row = _row(pairs, procs, pairs.numbers(most_work), shape, cut.side, pairs.ratio, cut.weight)
    scale = math.lcm(*(Fraction(each).denominator for each in row))
    a, b, rest = (int(each * scale) for each in row)
    if rest <= 0:
        return 0
    most = (math.isqrt(b * b + 4 * a * rest) - b) // (2 * a)  # the most with a·most² + b·most <= rest
    return most + (a * most * most + b * most < rest)  # words are whole


class _Pairs(NamedTuple):
    """The pairs (output, input) of a layer, or the same with outputs and inputs exchanged."""

    axes: list[list[Part]]
    channels: int  # for each pair of a position of Out and one of In
    filters: int
    samples: int
    taps: int  # the most inputs of an output
    readers: int  # the most outputs of an input
    work: int

    @property
    def ratio(self) -> Fraction:
        """κ: with it the dearest copy of an input and one of an output cost the same."""
        return Fraction(self.channels * self.taps, self.filters * self.readers)

    def numbers(self, cap: int) -> tuple[Fraction, Fraction, Fraction]:
        """F/T, and of Γ(Δ) = Δ²/4 + linear·Δ + constant the last two."""
        c, k, taps = self.channels, self.filters, self.taps
        outputs = inputs = self.samples
        for axis in self.axes:
            outputs *= sum(each.number * each.reaches[0].outputs for each in axis)
            inputs *= sum(each.number * reach.read * reach.taps for each in axis for reach in each.reaches)
        work = Fraction(self.work, taps)
        more_in, more_out = c * Fraction(inputs, taps) - work / k, k * outputs - work / c
        pad = more_in + more_out
        constant = cap * work / (c * k * taps) + cap * (more_in / c + more_out / k) / taps + pad * pad / 4
        return work, Fraction(cap, taps * min(c, k)) + pad / 2, constant


@lru_cache(maxsize=256)
def _pairs(nest: Nest, turned: bool) -> _Pairs | None:
    """The pairs of a layer; None where the proof does not apply."""
    c, k = nest.extents.c, nest.extents.k
    axes: list[list[Part]] = []
    positions = edges = taps = readers = 1
    for axis in SPATIAL:
        window, outputs = nest.windows[axis], getattr(nest.extents, axis)
        after = window.stride * (outputs - 1) + window.span - window.padding - window.size
        if window.kernel > MOST_TAPS or max(-window.padding, window.padding, after) >= max(2, window.span):
            return None
        found = parts(window, outputs)
        most = max(reach.taps for reach in found[0].reaches)
        if most == 1:  # no two outputs share an input: taps are like channels
            c *= window.kernel
            continue
        axes.append(found)
        positions *= outputs
        edges *= window.taps(0, outputs)
        taps, readers = taps * window.kernel, readers * most
    samples = nest.words["Out"] // (k * positions)
    if not axes or nest.real_work != c * k * samples * edges:
        return None
    if turned:
        if any(len(axis[0].reaches) > 1 for axis in axes):
            return None
        axes = [[each.turned() for each in axis] for axis in axes]
        c, k = k, c
    made = _Pairs(axes, c, k, samples, taps, readers, nest.real_work)
    idle = any(degree == 0 for axis in axes for degree, _ in line(axis, made.ratio).kinds)
    return None if idle else made


def _rounded(value: float) -> Fraction:
    """A fraction near a positive number, of 12 bits."""
    mantissa, exponent = math.frexp(value)
    return Fraction(round(mantissa * 4096)) * Fraction(2) ** (exponent - 12)


def _shape(pairs: _Pairs, squares: bool, side: Number, ratio: Number, lines: Sequence[Line]) -> Region | None:
    """The region of a cut."""
    short = longest_short(len(pairs.axes), side)
    if squares:
        return square_region(pairs.axes, ratio, short)
    return region(lines, short) if all(short >= each.short for each in lines) else None


def _weights(shape: Region) -> list[float]:
    """Up to 16 weights per word of Out beyond one copy, from that of a position inside the image upwards."""
    both = [*shape.kinds, *shape.inputs]
    values = sorted({shape.taps, *(d + q for d, q in both if d + q > shape.taps)})
    if len(values) > 16:
        values = [values[i * (len(values) - 1) // 15] for i in range(16)]
    return [math.ceil(each * 256) / 256 for each in values]


def _row(
    pairs: _Pairs,
    procs: int,
    numbers: Sequence[Number],
    shape: Region,
    side: Number,
    ratio: Number,
    weight: Number,
) -> tuple[Number, Number, Number]:
    """(a, b, rest) with a·Δ² + b·Δ >= rest: C·t·Δ + β·Γ(Δ) >= the right side, in docs/bounds.md."""
    c, k = pairs.channels, pairs.filters
    work, linear, constant = numbers
    slope, square = shape.tangent(len(pairs.axes), side)
    charges = pairs.samples * (shape.charges(ratio) + (procs - 1) * shape.over(weight, ratio))
    return square / 4, c * weight + square * linear, slope * work - c * k * charges - square * constant


def surface_bound(nest: Nest, procs: int, most_work: int) -> float:
    """Lower bound on received words per process, on average, with the surface of regions. 0 if not proved.

    Assumptions and arguments are those of `universal.universal_bound`, for any memory.
    """
    if procs < 1 or most_work * procs < nest.real_work:
        return 0.0
    cap = min(most_work, max(1, nest.real_work))
    out, inp, ker = (float(nest.read_words[tensor]) for tensor in ("Out", "In", "Ker"))
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
