"""Numbers with which `proof/Constants.v` proves a ceiling of C(N, R)², R = 2, 3 or 4.

For one direction (a, b) of symmetric taps b b, a b a or a b b a, the ceiling says that a symmetric band
matrix A of numbers >= 0 has no eigenvalue above c. A positive vector z with A·z <= c·z proves it (Perron).
Between two neighbouring directions the form is a combination of three: that of each of them, and the mixed
one. So a list of directions from (1, 0) to (0, 1), with a vector z for each form, proves the ceiling for all
taps.

Nothing here is trusted: Coq checks every inequality with integers. Floating-point arithmetic finds z as the
solution of (c·I - A)·z = 1.
"""

from __future__ import annotations

from fractions import Fraction

from synth.bounds.holder_brascamp_lieb import pivots, solve

SCALE = 2**40  # entries of z are multiples of 1/SCALE
GRID = 2**26  # directions are (GRID·cos, GRID·sin), rounded
LEAST = 2.0**-24  # no two directions are closer
Direction = tuple[int, int]
"""The outer taps a and the inner taps b of symmetric taps."""
Step = tuple[Direction, list[int], list[int]]
"""A direction, z of its own form, and z of its form with the next direction."""


def constant_proof(outputs: int, taps: int, square: Fraction) -> list[Step] | None:
    """The directions that prove C(outputs, taps)² <= square. `None` if none are found.

    The list is empty if `square` is at least min(outputs, taps), which needs no proof.
    """
    few, many = sorted((outputs, taps))
    if few <= square:
        return []
    if few > 4 or square <= 1:
        return None
    if few == 2:
        own = _vector(many, coefficients(True, (0, 1), (0, 1)), square)
        return None if own is None else [((0, 1), own, [])]
    return _directions(many, few == 4, square)


def _directions(many: int, four: bool, square: Fraction) -> list[Step] | None:
    """The directions for three or four taps."""
    own: dict[Direction, list[int] | None] = {}

    def of(p: Direction, q: Direction) -> list[int] | None:
        return _vector(many, coefficients(four, p, q), square)

    steps: list[Step] = []
    todo: list[Direction] = [(0, 1), (1, 1), (1, 0)]  # a stack: the next direction is on top
    at = todo.pop()
    own[at] = of(at, at)
    while todo:
        goal = todo[-1]
        if goal not in own:
            own[goal] = of(goal, goal)
        here, there, mixed = own[at], own[goal], of(at, goal)
        if here is None or there is None:
            return None
        if mixed is None:
            middle = _between(at, goal)
            if middle is None:
                return None
            todo.append(middle)
            continue
        steps.append((at, here, mixed))
        at = todo.pop()
    last = own[at]
    return None if last is None else [*steps, (at, last, [])]


def _between(p: Direction, q: Direction) -> Direction | None:
    """A direction in the middle of two, None if they are too close."""
    x, y = (p[0] / sum(p) + q[0] / sum(q)) / 2, (p[1] / sum(p) + q[1] / sum(q)) / 2
    if abs(p[0] / sum(p) - q[0] / sum(q)) < LEAST:
        return None
    return round(x * GRID), round(y * GRID)


def coefficients(four: bool, p: Direction, q: Direction) -> tuple[int, int, int, int]:
    """The coefficients of |u|² and of the lags 1, 2 and 3, as `coefficients` of `proof/Constants.v`."""
    aa, ab, bb = p[0] * q[0], p[0] * q[1] + p[1] * q[0], p[1] * q[1]
    return (2 * aa + 2 * bb, ab + bb, ab, aa) if four else (2 * aa + bb, ab, aa, 0)


def _vector(many: int, form: tuple[int, int, int, int], square: Fraction) -> list[int] | None:
    """Integers z > 0 with Σ c_k·(z(x-k) + z(x+k)) <= (square - 1)·c_0·z(x), between zeros.

    `None` if floating-point arithmetic finds none.
    """
    whole, *lags = form
    diagonal = (square - 1) * whole
    size = float(diagonal)
    rows = pivots(many, 1.0, [lag / size for lag in lags])
    if rows is None:
        return None
    z = [round(value * SCALE) for value in solve(rows, [1.0] * many)]
    padded = [0, 0, 0, *z, 0, 0, 0]
    for x in range(many):
        sums = sum(lag * (padded[x + 3 - k] + padded[x + 3 + k]) for k, lag in enumerate(lags, start=1))
        if z[x] <= 0 or sums * diagonal.denominator > diagonal.numerator * z[x]:
            return None
    return padded
