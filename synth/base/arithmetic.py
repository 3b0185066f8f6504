"""Integer arithmetic that several stages need."""

from __future__ import annotations

import math
from functools import cache


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive integer, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(small + [number // d for d in reversed(small) if d * d != number])
