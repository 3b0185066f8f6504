"""Whether ranks combine the parts that they have of normalized groups in one round, or in two.

In one round every rank sends its numbers to all others that hold the group. In two they go to the ranks that
own shares of them, and return combined: a latency more, for fewer words. `SharedParts` of the runtime decides
by the same rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBERS = 2  # per group and pass: mean and variance, or two sums
ROUND = 1024  # words per number that one round may move more than two
Count = int | NDArray[Any]


def in_one_round(words: Count, share: Count, ranks: Count) -> NDArray[np.bool_]:
    """Whether one round is taken. words: numbers of one kind that a rank holds; share: that it would own."""
    return np.asarray((ranks - 2) * (words - share) <= ROUND)
