"""Kinds of rows are those of `np.unique` along an axis, also where rows do not fit in one number."""

from __future__ import annotations

import numpy as np
import pytest

from synth.base.array_kinds import kinds_of


@pytest.mark.parametrize("most", [1, 5, 2**31, 2**62])
def test_kinds_are_those_of_rows(most: int) -> None:
    rows = np.random.default_rng(most).choice([0, 1, most // 2, most], (200, 4))
    different, positions, kinds = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    first, kind = kinds_of(rows.T)
    np.testing.assert_array_equal(rows[first], different)
    np.testing.assert_array_equal(first, positions)
    np.testing.assert_array_equal(kind, kinds.reshape(-1))


def test_no_rows_have_no_kind() -> None:
    first, kind = kinds_of(np.zeros((3, 0), np.int64))
    assert len(first) == len(kind) == 0
