"""Bytes that torch allocates while something runs, by the CPU allocator's own reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile


class Allocated(NamedTuple):
    """Bytes of live tensors above those at the start: at most during a run, and at its end."""

    peak: int
    end: int


def allocated(run: Callable[[], Any]) -> Allocated:
    """What a run allocates. Its result is freed before the end is measured."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    reports: list[tuple[int, int]] = []
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.name == "[memory]":
            reports.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = peak = 0
    for _, size in sorted(reports, key=lambda report: report[0]):
        now += size
        peak = max(peak, now)
    return Allocated(peak, now)
