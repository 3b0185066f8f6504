"""Seconds of tests: those of a free machine count whole, those of a busy one a quarter at least."""

from __future__ import annotations

from unittest.mock import patch

import fair_clock
import pytest
from fair_clock import FairClock


@pytest.mark.parametrize(("waits", "counted"), [(0.0, 10.0), (4.0, 6.0), (9.9, 2.5), (50.0, 2.5)])
def test_time_in_which_processes_wait_does_not_count(waits: float, counted: float) -> None:
    with (
        patch.object(fair_clock, "waited", side_effect=[100.0, 100.0 + waits, 100.0 + waits]),
        patch.object(fair_clock.time, "monotonic", side_effect=[50.0, 60.0, 60.0]),
    ):
        clock = FairClock()
        assert clock.seconds() == pytest.approx(counted)
        assert clock.seconds(5.0) == pytest.approx(counted / 2)


def test_the_pressure_of_this_machine_never_falls() -> None:
    first = fair_clock.waited()
    assert 0 <= first <= fair_clock.waited()
