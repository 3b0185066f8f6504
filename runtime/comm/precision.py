"""The dtype in which words are added, and the extremes of a dtype.

Words of half precision travel as they are: a planned word stays one word of the dtype.
Their sums are taken in float32 and rounded once. Added in half precision instead, the
error grows with the number of terms (docs/rounding.md has the measurements).
"""

from __future__ import annotations

import torch

HALF = torch.float16, torch.bfloat16


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that adds words of a dtype: float32 for half precision, else itself."""
    return torch.float32 if dtype in HALF else dtype


def largest(dtype: torch.dtype) -> float:
    """The word of a dtype that no other exceeds."""
    if dtype == torch.bool:
        return True
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def smallest(dtype: torch.dtype) -> float:
    """The word of a dtype that exceeds no other."""
    if dtype == torch.bool:
        return False
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min
