"""What regions of images and volumes cost where windows are 3 by 3: more than lines of one axis show.

docs/bounds.md has the proof. Regions of a plane that reads windows of 3 by 3 may be taken symmetric, also
along diagonals. The pairs of opposite inputs of windows form chains along axes and diagonals, and octagons
meet the fewest of them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from synth.bounds.regions import Kinds, Number, Part, Region

TAPS = 9
OCTAGON, CORNERS = Fraction(2116601, 100_000), 24  # κ = 1: at least √448·√m - CORNERS for m outputs
SQUARE = 36  # κ >= 8: at least SQUARE·(√m - 1)
LINES, THIN = (12, 18), 2  # κ = 1 and κ >= 8: at least LINES·min(√m, m/(2·THIN)), as lines show


def plane_cost(part: Number, side: Number) -> Number | None:
    """A with which m outputs of a plane without borders cost at least A·min(√m, m/`side`). None: not proved.

    part: λ; inputs cost at least (1-λ)·φ_1 + λ·φ_8 (docs/bounds.md).
    """
    steep, less = (1 - part) * OCTAGON + part * SQUARE, (1 - part) * CORNERS + part * SQUARE
    flat = (1 - part) * LINES[0] + part * LINES[1]
    cost = steep - less / side
    if cost <= 0 or side * flat < 2 * THIN * cost or side * flat * (steep - flat) < less * cost:
        return None
    return cost


def lost(readers: int, ratio: Number, part: Number) -> Number:
    """What an input of a plane that is taken costs less at most than without borders, by its readers."""
    return max(_cost(i, part) - ratio * (readers - i) for i in range(readers + 1))


def _cost(inside: int, part: Number) -> Number:
    """The cost (1-λ)·φ_1 + λ·φ_8 of an input of a plane without borders that `inside` outputs read."""
    return (1 - part) * min(TAPS - inside, inside) + part * (inside if inside < TAPS else 0)


def square_region(axes: Sequence[Sequence[Part]], ratio: Number, short: Number) -> Region | None:
    """The regions of images or volumes with windows of 3 along each axis. None where nothing is proved.

    ratio: κ, input channels by filters. short: as that of `region`.
    """
    count = len(axes)
    if count not in (2, 3) or ratio < 1 or any(r.taps != 3 for axis in axes for r in axis[0].reaches):
        return None
    if any(len(axis[0].reaches) > 1 for axis in axes):
        return None
    part = min(1 + 0 * ratio, (ratio - 1) / (TAPS - 2))
    side = 2 * short if count == 2 else short
    cost = plane_cost(part, side)
    if cost is None:
        return None
    kinds: Kinds = Counter()
    for degrees, number in _partners(axes):
        charge = 0 * ratio
        for one, two, planes in _planes(degrees):
            missing = 3 ** (count - 2) - planes
            charge += planes * (TAPS - one * two) + missing * cost / side
        kinds[math.prod(degrees), charge / math.comb(count, 2)] += number
    inputs: Kinds = Counter()
    for degrees, number in _partners([[each.turned() for each in axis] for axis in axes]):
        charge = sum(planes * lost(one * two, ratio, part) for one, two, planes in _planes(degrees))
        inputs[math.prod(degrees), charge / math.comb(count, 2) / ratio] += number
    return Region(3**count, cost / 2 if count == 2 else cost, short, kinds, inputs)


def _partners(axes: Sequence[Sequence[Part]]) -> list[tuple[list[int], int]]:
    """How many inputs an output reads along each axis, and the number of such outputs."""
    along = []
    for axis in axes:
        degrees: Counter[int] = Counter()
        for part in axis:
            for met, number in part.reaches[0].degrees().items():
                degrees[met] += number * part.number
        along.append(degrees)
    corners = itertools.product(*(each.items() for each in along))
    return [([met for met, _ in each], math.prod(number for _, number in each)) for each in corners]


def _planes(degrees: list[int]) -> list[tuple[int, int, int]]:
    """For each pair of axes the partners along both, and those along the third axis (1 without it)."""
    return [
        (degrees[i], degrees[j], math.prod(degrees[:i] + degrees[i + 1 : j] + degrees[j + 1 :]))
        for i, j in itertools.combinations(range(len(degrees)), 2)
    ]
