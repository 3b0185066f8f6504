"""Kinds of equal rows of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def kinds_of(columns: Iterable[Array]) -> tuple[Array, Array]:
    """(The first row of every kind, row -> its kind), of rows that columns give; kinds ascend, from 0.

    columns: whole numbers that are not negative. They become one number per row, since `np.unique` along an
    axis sorts rows byte by byte.
    """
    code: Array = np.zeros(1, np.int64)
    codes = 1
    for column in columns:
        many = int(column.max(initial=0)) + 1
        if codes * many >= 2**63:  # then the places of numbers in their order stand for them
            (codes, code), (many, column) = _places(code), _places(column)
        code, codes = code * many + column, codes * many
    _, first, kind = np.unique(code, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)


def _places(numbers: Array) -> tuple[int, Array]:
    """How many different numbers there are, and for each its place among them."""
    different, places = np.unique(numbers, return_inverse=True)
    return len(different), places.reshape(-1)
