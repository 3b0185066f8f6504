"""Integer arithmetic that several stages need."""

from __future__ import annotations

import math
from functools import cache


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive integer, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(small + [number // d for d in reversed(small) if d * d != number])


def same_number(stated: object, derived: float) -> bool:
    """Whether a value read from a file is a number equal to `derived` but for the last digits.

    JSON has whole numbers of any length, which need not fit a float.
    """
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return False
    try:
        return math.isclose(stated, derived, rel_tol=1e-9)
    except OverflowError:
        return stated == derived
