"""Seconds that a rank waits, in ranges that lie in each other."""

from __future__ import annotations

import time

import pytest

from synth.runtime.grid.spans import Waited, waiting


def test_seconds_of_a_range_in_another_count_once() -> None:
    before = Waited.seconds
    with waiting("outer"):
        time.sleep(0.01)
        with waiting("inner"):
            time.sleep(0.02)
        with pytest.raises(ValueError, match="lost"), waiting("another"):
            raise ValueError("lost")
    with waiting("later"):
        time.sleep(0.01)
    waited = Waited.seconds - before
    assert waited >= 0.04

    begin = time.perf_counter()
    with waiting("outer"), waiting("inner"):
        time.sleep(0.2)
    assert Waited.seconds - before - waited <= time.perf_counter() - begin
