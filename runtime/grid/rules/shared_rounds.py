"""How ranks combine the parts that they have of some values: in one round or in two.

In one round every rank sends its numbers to all others that hold the values. In two
they go to the ranks that own shares of the values, and return combined: a latency more,
for fewer words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

NUMBERS = 2  # per value of a norm, in a pass: mean and variance, or two sums
LARGE = 2**16  # bytes from which a piece is a message of its own
ROUND = 1024  # words per number that one round may move more; 8 KiB of two in float32


def owned_share(extents: Sequence[int], ranks: int) -> int:
    """The most values of a box that one of some ranks owns."""
    longest = max(extents, default=1)
    return math.prod(extents) // max(1, longest) * -(-longest // ranks)


def all_reduced(words: int, ranks: int) -> int:
    """Words that each of some ranks receives in a sum of so many over them.

    Each adds up a part, and gets the others: a reduce-scatter and an all-gather.
    """
    return 2 * words * (ranks - 1) // ranks


def in_one_round(words: Any, share: Any, ranks: Any) -> Any:
    """Whether one round is taken. words: values of a rank; share: that it would own."""
    return (ranks - 2) * (words - share) <= ROUND
