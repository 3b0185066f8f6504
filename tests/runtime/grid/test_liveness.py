"""The timer by which the kernel ends a process that hangs."""

from __future__ import annotations

import signal

import pytest

from synth.runtime.grid.liveness import Watch


def test_a_timeout_may_be_longer_than_the_system_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, start = Watch(0, 2, "rank {}".format, False, 1e12, "a job"), signal.setitimer
    # the other timer is pytest's
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: start(signal.ITIMER_VIRTUAL, seconds))
    watch.limit_life()
    left, _ = signal.getitimer(signal.ITIMER_VIRTUAL)
    watch.limit_life(0)
    assert left > 1e9
