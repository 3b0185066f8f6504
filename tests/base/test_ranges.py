"""Ranges: ends included, ascending, distinct; every wrong one refused with a remedy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.base.errors import UsageError
from synth.base.ranges import parse_memory, parse_procs, spaced


def test_forms() -> None:
    assert parse_procs("64") == [64]
    assert parse_procs("61,8,1,8") == [1, 8, 61]
    assert parse_procs("1:10") == [1, 2, 4, 8, 10]
    assert parse_memory("64KiB:1MiB") == [2**n for n in range(16, 21)]
    assert parse_memory("1M") == [10**6]
    assert parse_procs("7:7") == [7]


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(2, 300))
def test_points_are_ascending_and_hold_both_ends(low: int, more: int, points: int) -> None:
    for values in (spaced(low, low + more), spaced(low, low + more, points)):
        assert values == sorted(set(values))
        assert (values[0], values[-1]) == (low, low + more)
    assert len(spaced(low, low + more, points)) <= points + 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("64:1", "procs '64:1' is empty: 64 is more than 1; write LOW:HIGH"),
        ("1:2:3", "procs '1:2:3' has more than one colon; write LOW:HIGH"),
        ("", "'' is not a number of processes; write a whole number from 1 to 1073741824"),
        ("0", "'0' is not a number of processes; write a whole number from 1 to 1073741824"),
        ("1:", "'' is not a number of processes; write a whole number from 1 to 1073741824"),
    ],
)
def test_wrong_ranges(text: str, message: str) -> None:
    with pytest.raises(UsageError) as fault:
        parse_procs(text)
    assert str(fault.value) == message


def test_too_few_points() -> None:
    with pytest.raises(UsageError, match="points is 1; it must be from 2"):
        parse_procs("1:9", 1)
