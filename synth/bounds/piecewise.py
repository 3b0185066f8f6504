"""Continuous functions that are linear between points, of floats or of fractions.

With fractions all results are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Number = Any  # a float or a Fraction


class Curve(NamedTuple):
    """A function between the first and the last of its points. xs: rising."""

    xs: Sequence[Number]
    ys: Sequence[Number]

    def __call__(self, x: Number) -> Number:
        """The value at x."""
        return _between(self.xs, self.ys, x)

    def inverse(self, y: Number) -> Number:
        """An x at which a curve that does not fall has a value."""
        return _between(self.ys, self.xs, y)


def _between(xs: Sequence[Number], ys: Sequence[Number], x: Number) -> Number:
    right = max(1, min(bisect_left(xs, x), len(xs) - 1))
    wide = xs[right] - xs[right - 1]
    if not wide:
        return ys[right]
    return ys[right - 1] + (x - xs[right - 1]) * (ys[right] - ys[right - 1]) / wide


def floats(curve: Curve) -> Curve:
    """The same in floating point."""
    return Curve([float(x) for x in curve.xs], [float(y) for y in curve.ys])


def least_after(curve: Curve) -> Curve:
    """At x: the least value at x and behind it."""
    xs, ys = _running_least(curve.xs[::-1], curve.ys[::-1])
    return Curve(xs[::-1], ys[::-1])


def least_before(curve: Curve, slope: Number) -> Curve:
    """At x: the least of the values at x, and of those before it plus `slope` times the distance."""
    tilted = [y - slope * x for x, y in zip(*curve, strict=True)]
    xs, ys = _running_least(curve.xs, tilted)
    return Curve(xs, [y + slope * x for x, y in zip(xs, ys, strict=True)])


def _running_least(xs: Sequence[Number], ys: Sequence[Number]) -> tuple[list[Number], list[Number]]:
    some, least = [xs[0]], [ys[0]]
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        if y1 < least[-1]:
            if y0 > least[-1]:
                some.append(x0 + (y0 - least[-1]) * (x1 - x0) / (y0 - y1))
                least.append(least[-1])
            elif some[-1] != x0:
                some.append(x0)
                least.append(least[-1])
            some.append(x1)
            least.append(y1)
    if some[-1] != xs[-1]:
        some.append(xs[-1])
        least.append(least[-1])
    return some, least


def extended(curve: Curve, end: Number, slope: Number) -> Curve:
    """The curve up to `end`, to which it goes on with a slope."""
    last = curve.xs[-1]
    if end <= last:
        return curve
    return Curve([*curve.xs, end], [*curve.ys, curve.ys[-1] + slope * (end - last)])


def composed(outer: Curve, inner: Curve, end: Number) -> Curve:
    """outer(inner(x)) for x from 0 to `end`; `inner` does not fall."""
    top = inner(end)
    points = [(x, outer(y)) for x, y in zip(*inner, strict=True) if x < end]
    points += [(inner.inverse(y), z) for y, z in zip(*outer, strict=True) if inner.ys[0] < y < top]
    return _curve([*points, (end, outer(top))])


def total(curves: Sequence[Curve]) -> Curve:
    """The sum of curves between the same ends."""
    if len(curves) == 1:
        return curves[0]
    xs = sorted({x for curve in curves for x in curve.xs})
    return Curve(xs, [sum((curve(x) for curve in curves[1:]), curves[0](x)) for x in xs])


def _curve(points: Iterable[tuple[Number, Number]]) -> Curve:
    xs, ys = list[Number](), list[Number]()
    for x, y in sorted(points):
        if not xs or x > xs[-1]:
            xs.append(x)
            ys.append(y)
    return Curve(xs, ys)
