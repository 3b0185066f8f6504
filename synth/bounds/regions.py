"""What regions of signals, images and volumes cost (docs/bounds.md, "The surface of regions").

All numbers are exact if the ratio, the weight and the side are fractions; floats choose among shapes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from synth.layer.window import Window

Number = Fraction | float
Kinds = Counter[tuple[int, Number]]


@dataclass(frozen=True)
class Line:
    """Lines of output positions along one axis, seen from lines of input positions.

    A line with a outputs of a region costs at least `ends`·min(a, `short`)/`short`, less what its positions
    at the border of the image are charged. `kinds` counts positions by (degree, charge): the inputs that a
    position reads, and its charge.
    """

    taps: int
    ends: Number
    short: Number
    kinds: Kinds


class Reach(NamedTuple):
    """Output x reads the inputs x - before .. x - before + taps - 1 that are in [0, size)."""

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

    @property
    def read(self) -> int:
        """The number of inputs that some output reads."""
        last = min(self.size, self.outputs + self.taps - 1 - self.before)
        return max(0, last - max(0, -self.before))


class Part(NamedTuple):
    """Outputs of an axis that share inputs with each other only, and `number` times the same beside them.

    reaches: of the same outputs, by residue classes of the inputs modulo the stride.
    """

    number: int
    reaches: tuple[Reach, ...]

    def turned(self) -> Part:
        """The same with inputs and outputs exchanged. There is one class of inputs."""
        (reach,) = self.reaches
        return Part(self.number, (reach.turned(),))


def parts(window: Window, outputs: int) -> list[Part]:
    """An axis as parts: outputs that are a multiple of δ/gcd(σ, δ) apart share inputs."""
    stride, dilation, taps = window.stride, window.dilation, window.kernel
    step = stride // math.gcd(stride, dilation)  # between taps that read the same class of inputs
    apart = dilation * step // stride
    lattice = stride * apart  # between successive inputs of a class

    def at(first: int) -> tuple[Reach, ...]:
        count = -(-(outputs - first) // apart)
        found = []
        for tap in range(min(step, taps)):
            row = stride * first + dilation * tap - window.padding
            before = -(row // lattice)
            found.append(
                Reach(
                    -(-(taps - tap) // step), (window.size - 1 - row) // lattice - before + 1, count, before
                )
            )
        return tuple(found)

    turns = {0, min(outputs, apart), outputs % apart}
    for tap in range(min(step, taps)):
        for end in (0, window.size):  # from these outputs on, a class has an input more before it, or less
            turns.add(-(-((window.padding + end - dilation * tap) % lattice) // stride))
    edges = sorted(each for each in turns if each <= min(outputs, apart))
    return [Part(after - first, at(first)) for first, after in itertools.pairwise(edges)]


def line(axis: Sequence[Part], ratio: Number) -> Line:
    """The line of an axis. `ratio`: κ, by which an input of a region costs more than an output."""
    taps = [reach.taps for reach in axis[0].reaches]
    most = max(taps)
    sums = [
        sum(_cost(min(a, j, n, a + n - j), n, ratio) for n in taps for j in range(1, a + n))
        for a in range(1, most)
    ]
    ends = 2 * sum(_cost(j, n, ratio) for n in taps for j in range(1, n))
    short = max([1 + 0 * ratio, *(a * ends / total for a, total in enumerate(sums, 1) if total < ends)])
    kinds: Kinds = Counter()
    for each in axis:
        outputs = each.reaches[0].outputs
        low = min(2 * most, outputs)
        high = max(low, outputs - 2 * most)
        kinds[sum(taps), 0 * ratio] += (high - low) * each.number
        for x in itertools.chain(range(low), range(high, outputs)):
            kinds[kind(each.reaches, ratio, x)] += each.number
    return Line(sum(taps), ends, short, +kinds)


def _cost(inside: int, degree: int, ratio: Number) -> Number:
    """The least cost of an input that `inside` outputs of a region and `degree` outputs in all read."""
    return min(ratio * (degree - inside), inside + 0 * ratio)


def kind(reaches: Sequence[Reach], ratio: Number, x: int) -> tuple[int, Number]:
    """(inputs that output x reads, its charge): what lines lose at the border of the image, per position."""
    degree, charge = 0, 0 * ratio
    for reach in reaches:
        for y in range(x - reach.before, x - reach.before + reach.taps):
            readers = min(reach.outputs, y + reach.before + 1) - max(0, y + reach.before - reach.taps + 1)
            real = 0 <= y < reach.size
            degree += real
            if not real or readers < reach.taps:
                charge += _charge(reach.taps, readers, real, ratio)
    return degree, charge


@lru_cache(maxsize=4096, typed=True)  # 2.25 is no Fraction(9, 4)
def _charge(taps: int, readers: int, real: bool, ratio: Number) -> Number:
    """What each of the readers of an input is charged."""
    return max(
        (_cost(i, taps, ratio) - (_cost(i, readers, ratio) if real else 0)) / i for i in range(1, readers + 1)
    )


@dataclass(frozen=True)
class Region:
    """What the lines of all axes give for a region: costs, and its positions by (degree, charge)."""

    taps: int
    scale: Number  # w: a region of m positions of n axes costs w·min(n·m^(1-1/n), m/short)
    short: Number
    kinds: Kinds
    inputs: Kinds = field(default_factory=Counter)  # the same of inputs; charges by κ

    def charges(self, ratio: Number) -> Number:
        """The charges of one copy of all outputs, and of all inputs. `ratio`: κ."""
        outputs, inputs = (sum(q * n for (_, q), n in kinds.items()) for kinds in (self.kinds, self.inputs))
        return outputs + ratio * inputs

    def over(self, weight: Number, ratio: Number) -> Number:
        """By how much degree and charge exceed `weight`, over one copy of all outputs and inputs."""
        outputs, inputs = (
            sum(n * (d + q - weight) for (d, q), n in kinds.items() if d + q > weight)
            for kinds in (self.kinds, self.inputs)
        )
        return outputs + ratio * inputs

    def tangent(self, axes: int, side: Number) -> tuple[Number, Number]:
        """(α, β): a region of m positions costs at least α·m - β·m², with equality for m = side^axes.

        For a `short` of at most side/(axes + 1).
        """
        return (axes + 1) * self.scale / side, self.scale / side ** (axes + 1)


def longest_short(axes: int, side: Number) -> Number:
    """The largest `short` with which `Region.tangent` holds at this side."""
    return side / (axes + 1)


def region(lines: Sequence[Line], short: Number = 0) -> Region:
    """The regions of signals, images or volumes with these lines: the mean of what their axes give.

    short: of lines, if it is more than theirs. It lowers the charges of lines at the border of an image, as
    these meet fewer lines of inputs.
    """
    axes, short = len(lines), max(short, *(each.short for each in lines))
    taps = math.prod(each.taps for each in lines)
    kinds: Kinds = Counter()
    for along in itertools.product(*(each.kinds.items() for each in lines)):
        degrees = [degree for (degree, _), _ in along]
        charge: Number = 0
        for axis, (each, ((_, own), _)) in enumerate(zip(lines, along, strict=True)):
            across, met = taps // each.taps, math.prod(degrees[:axis] + degrees[axis + 1 :])
            charge += across * own + each.ends / short * (across - met)
        kinds[math.prod(degrees), charge / axes] += math.prod(number for _, number in along)
    scale = min(taps // each.taps * each.ends for each in lines) / axes
    return Region(taps, scale, short, kinds)
