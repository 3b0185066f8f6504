"""What regions of signals, images and volumes cost; windows have an odd number of taps (docs/bounds.md)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


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

    def partners(self, x: int) -> int:
        """The number of inputs that output x reads."""
        return max(0, min(self.size, x - self.before + self.taps) - max(0, x - self.before))

    def degrees(self) -> Counter[int]:
        """Number of inputs -> how many outputs read so many: all taps, but at the ends."""
        low = min(max(0, self.before), self.outputs)
        high = max(low, min(self.outputs, self.size - self.taps + self.before + 1))
        found = Counter(self.partners(x) for x in itertools.chain(range(low), range(high, self.outputs)))
        found[self.taps] += high - low
        return +found


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
    inputs: Counter[tuple[int, float]] = field(default_factory=Counter)  # the same of inputs; charges by κ

    def charges(self, ratio: float) -> float:
        """The charges of one copy of all outputs, and of all inputs. `ratio`: κ."""
        return sum(q * n for (_, q), n in self.kinds.items()) + ratio * sum(
            q * n for (_, q), n in self.inputs.items()
        )

    def over(self, weight: float, ratio: float) -> float:
        """By how much degree and charge exceed `weight`, over one copy of all outputs and inputs."""
        outputs, inputs = (
            sum(n * max(0.0, d + q - weight) for (d, q), n in kinds.items())
            for kinds in (self.kinds, self.inputs)
        )
        return outputs + ratio * inputs

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
