"""Input positions that any outputs of a layer read at least, in exact arithmetic.

docs/bounds.md ("Networks with recomputation") has the argument. A layer reads in windows along axes of images
that share no word, or in proportion to its outputs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from synth.bounds.piecewise import Curve

POINTS = 16  # of a concave function
MANY = 8  # independent parts of a result, beyond which only whole ones count
UNIT = 256  # roots are rounded down to a fraction with this denominator


Point = tuple[Fraction, Fraction]


class Axis(NamedTuple):
    """A window of stride and dilation 1. before, after: the zeros on both sides."""

    outputs: int
    taps: int
    before: int
    after: int

    @property
    def more(self) -> int:
        """How many more inputs than outputs a whole line has."""
        return self.taps - 1 - self.before - self.after

    @property
    def side(self) -> int:
        """Inputs beyond `more` that a line of outputs reads at least, unless it is almost complete."""
        return min(self.before, self.after)

    @property
    def least(self) -> int:
        """Inputs beyond the outputs of a line that is not almost complete, at least."""
        return self.more + self.side


class Windows(NamedTuple):
    """Outputs that read windows, in images that share no word.

    Positions count as a share of all channels, so every group has its part of the positions of an image.
    """

    axes: tuple[Axis, ...]
    images: int = 1
    groups: int = 1


class Proportion(NamedTuple):
    """Every output has `ratio` inputs of its own, or 1/ratio outputs share one."""

    outputs: int
    ratio: Fraction


Reading = Windows | Proportion


@lru_cache(maxsize=4096)
def least_inputs(reading: Reading) -> Curve:
    """By x: the input positions that any x output positions read at least. It does not fall."""
    if isinstance(reading, Proportion):
        return _line(Fraction(reading.outputs), reading.ratio * reading.outputs)
    axes, images, groups = reading
    parts = images * groups
    if parts > MANY:
        whole = math.prod(axis.outputs for axis in axes)
        return _line(Fraction(whole * parts, groups), any_share(axes, whole) * parts / groups)
    xs, ys = ([each / groups for each in some] for some in image_points(reading))
    return Curve(*([Fraction(0), *(x + i * of[-1] for i in range(parts) for x in of[1:])] for of in (xs, ys)))


def _line(x: Fraction, y: Fraction) -> Curve:
    return Curve([Fraction(0), x], [Fraction(0), y])


def image_points(reading: Windows) -> Curve:
    """Of one image. Of several, points of or below a concave function: they fill one after another."""
    axes, concave = reading.axes, reading.images * reading.groups > 1
    whole = math.prod(axis.outputs for axis in axes)
    some = {round(x) for x in np.geomspace(1, max(1, whole // 2), POINTS)} & set(range(whole // 2 + 1))
    if len(axes) < 3:
        some |= {whole - x for x in some} | {whole}
    points = [(Fraction(0), Fraction(0)), *((Fraction(x), x + border(axes, x)) for x in sorted(some))]
    if len(axes) == 3:
        points = _all_of_volume(axes, points, concave)
    xs, ys = zip(*points, strict=True)
    return Curve(xs, list(accumulate(ys, max)))


def _all_of_volume(axes: Sequence[Axis], points: list[Point], concave: bool) -> list[Point]:
    """The points of up to half of a volume, and those of more.

    All outputs that read an input which is not read are missing. If there are as many inputs as outputs, they
    are at least as many as the inputs that so many outputs read.
    """
    whole = math.prod(axis.outputs for axis in axes)
    half, top = points[-1]
    if any(axis.more for axis in axes):
        most = any_share(axes, whole)
        first = int(half) + bisect_left(range(int(half), whole), top, key=lambda x: any_share(axes, x))
        slope = max(Fraction(0), most - top) / max(1, whole - first)
        if concave:
            slope = min(slope, top / max(1, first))
            points = [(x, y) for x, y in points if y <= top + slope * (x - first)]
        else:
            points += [(Fraction(first), top)] * (first > half)
        return [*points, (Fraction(whole), top + slope * (whole - first))]
    behind = [(whole - y, whole - x) for x, y in points[::-1] if whole - y > half]
    cap = min(top - half, behind[0][1] - behind[0][0])
    return [(x, min(y, x + cap)) for x, y in [*points, *behind]]


def any_share(axes: Sequence[Axis], x: int) -> Fraction:
    """Inputs that x outputs read at least, axis by axis: a line of outputs may be complete."""
    kept, more = Fraction(1), list[Fraction]()
    for axis in axes:
        here = 1 - Fraction(axis.side, axis.outputs)
        more = [here * each for each in more] + [Fraction(axis.least)]
        kept *= here
    degree = len(axes)
    return kept * x + _root(degree**degree * math.prod(more) * x ** (degree - 1), degree)


def border(axes: Sequence[Axis], x: int) -> Fraction:
    """Inputs beyond x that x outputs read at least; along three axes, up to half of all outputs."""
    if len(axes) == 1:
        one = axes[0]
        return Fraction(min(one.least, one.outputs + one.more - x))
    if len(axes) == 2:
        left = axes[0].outputs * axes[1].outputs - x
        return min(_of_plane(axes, Fraction(x)), _all_but(axes, Fraction(left)))
    plane, last = axes[:2], axes[2]
    area, least = plane[0].outputs * plane[1].outputs, last.least
    top = min(_of_plane(plane, Fraction(area, 2)), _all_but(plane, Fraction(area, 2)))
    top = max(Fraction(0), top)
    nearly = min(top, Fraction(2 * area, (plane[0].side + plane[1].side + 1) ** 2))
    slope = 2 * nearly / area  # of a plane that is more than half full
    short = max(Fraction(0), least - slope * (Fraction(last.outputs, 2) - last.side))
    whole, thin = Fraction(least * area), slope * x
    thick = whole if whole <= thin else _root(4 * thin * whole, 2) - thin
    alike = min(_of_plane(plane, Fraction(x, last.outputs)), top)
    return min(
        _root(Fraction(27 * plane[0].least * plane[1].least * least * x * x), 3),  # a corner
        _root(4 * top * least * x, 2),  # an edge
        thin + whole / 2 if whole >= 4 * thin else thick,  # planes that are nearly full
        whole - short * x / last.outputs,  # full planes
        (last.outputs - last.side) * alike,  # all planes alike
    )


def _of_plane(axes: Sequence[Axis], x: Fraction) -> Fraction:
    """`border` along two axes, of a corner or a strip."""
    one, two = axes
    found = _root(4 * one.least * two.least * x, 2)
    if one.side:
        found = min(found, Fraction(two.least * (one.outputs - one.side + 1)))
    if two.side:
        found = min(found, Fraction(one.least * (two.outputs - two.side + 1)))
    return found


def _all_but(axes: Sequence[Axis], left: Fraction) -> Fraction:
    """The same if a line along each axis is almost complete. left: outputs that are missing."""
    one, two = axes
    if not (one.side and two.side):
        return Fraction(two.least * one.outputs + one.least * two.outputs)  # there is no such set
    return _root(4 * left, 2) - one.side - two.side


def _root(number: Fraction, degree: int) -> Fraction:
    """A fraction of which the power is at most a number, and that of the next one in 1/`UNIT` is not."""
    scaled = number.numerator * UNIT**degree // number.denominator
    if degree == 1:
        return Fraction(scaled, UNIT)
    if degree == 2:
        return Fraction(math.isqrt(scaled), UNIT)
    found = round(scaled ** (1 / 3))
    while found**3 > scaled:
        found -= 1
    while (found + 1) ** 3 <= scaled:
        found += 1
    return Fraction(found, UNIT)
