"""Counts the bytes that torch allocates in host memory, by the allocator's reports."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class Allocated(NamedTuple):
    """Bytes above those at the start of a run: at most, and at its end."""

    peak: int
    end: int


def allocated(run: Callable[[], Any]) -> Allocated:
    """What a run allocates. Its result is freed before the end is measured.

    Memory that oneDNN or gloo take from the system directly is not counted.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    reports: list[tuple[int, int]] = []
    results: Any = profiler.profiler
    pending = list(results.kineto_results.experimental_event_tree())
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


def least_peak(run: Callable[[], Any], times: int = 5) -> int:
    """What a run allocates at most, in bytes: the least of some runs.

    A thread of gloo may keep a message for a while after it came. All ranks call this.
    """
    return min(allocated(run).peak for _ in range(times))


def live_bytes() -> int:
    """Bytes of the storages of all live tensors in host memory."""
    gc.collect()
    storages: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated objects that gc comes across
        for each in gc.get_objects():
            if not issubclass(type(each), torch.Tensor) or each.device.type != "cpu":
                continue
            if not is_traceable_wrapper_subclass(each):  # which has no words itself
                storage = each.untyped_storage()
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())
