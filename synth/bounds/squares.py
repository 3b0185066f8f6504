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

from synth.bounds.regions import Reach, Region

TAPS = 9
OCTAGON, CORNERS = math.sqrt(448) * (1 - 1e-12), 24.0  # κ = 1: at least OCTAGON·√m - CORNERS for m outputs
SQUARE = 36.0  # κ >= 8: at least SQUARE·(√m - 1)
LINES, THIN = (12.0, 18.0), 2.0  # κ = 1 and κ >= 8: at least LINES·min(√m, m/(2·THIN)), as lines show


def plane_cost(part: float, side: float) -> float | None:
    """A with which m outputs of a plane without borders cost at least A·min(√m, m/`side`). None: not proved.

    part: λ; inputs cost at least (1-λ)·φ_1 + λ·φ_8 (docs/bounds.md).
    """
    steep, less = (1 - part) * OCTAGON + part * SQUARE, (1 - part) * CORNERS + part * SQUARE
    flat = (1 - part) * LINES[0] + part * LINES[1]
    cost = steep - less / side
    if cost <= 0 or side * flat < 2 * THIN * cost or side * flat * (steep - flat) < less * cost:
        return None
    return cost


def lost(readers: int, ratio: float, part: float) -> float:
    """What an input of a plane that is taken costs less at most than without borders, by its readers."""
    return max(_cost(i, part) - ratio * (readers - i) for i in range(readers + 1))


def _cost(inside: int, part: float) -> float:
    """The cost (1-λ)·φ_1 + λ·φ_8 of an input of a plane without borders that `inside` outputs read."""
    return (1 - part) * min(TAPS - inside, inside) + part * (inside if inside < TAPS else 0)


def square_region(reaches: Sequence[Reach], ratio: float, short: float) -> Region | None:
    """The regions of images or volumes with windows of 3 along each axis. None where nothing is proved.

    ratio: κ, input channels by filters. short: as that of `region`.
    """
    axes = len(reaches)
    if axes not in (2, 3) or ratio < 1 or any(reach.taps != 3 for reach in reaches):
        return None
    part = min(1.0, (ratio - 1) / (TAPS - 2))
    side = 2 * short if axes == 2 else short
    cost = plane_cost(part, side)
    if cost is None:
        return None
    kinds: Counter[tuple[int, float]] = Counter()
    for degrees, number in _partners(reaches):
        charge = 0.0
        for one, two, planes in _planes(degrees):
            missing = 3 ** (axes - 2) - planes
            charge += planes * (TAPS - one * two) + missing * cost / side
        kinds[math.prod(degrees), charge / math.comb(axes, 2)] += number
    inputs: Counter[tuple[int, float]] = Counter()
    for degrees, number in _partners([reach.turned() for reach in reaches]):
        charge = sum(planes * lost(one * two, ratio, part) for one, two, planes in _planes(degrees))
        inputs[math.prod(degrees), charge / math.comb(axes, 2) / ratio] += number
    return Region(3**axes, cost / 2 if axes == 2 else cost, short, kinds, inputs)


def _partners(reaches: Sequence[Reach]) -> list[tuple[list[int], int]]:
    """How many inputs an output reads along each axis, and the number of such outputs."""
    along = [reach.degrees() for reach in reaches]
    corners = itertools.product(*(each.items() for each in along))
    return [([met for met, _ in each], math.prod(number for _, number in each)) for each in corners]


def _planes(degrees: list[int]) -> list[tuple[int, int, int]]:
    """For each pair of axes the partners along both, and those along the third axis (1 without it)."""
    return [
        (degrees[i], degrees[j], math.prod(degrees[:i] + degrees[i + 1 : j] + degrees[j + 1 :]))
        for i, j in itertools.combinations(range(len(degrees)), 2)
    ]
