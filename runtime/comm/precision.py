"""The dtype in which words are added.

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
