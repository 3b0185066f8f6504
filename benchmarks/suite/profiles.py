"""Where this rank spends the time of a step: local kernels, copies and sums, waiting, and the rest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

KERNELS = ("convolution", "conv2d", "conv3d", "mm", "linear", "matmul", "mkldnn", "slow_conv")
WAITS = ("wait", "c10d", "_c10d_functional", "gloo", "DistributedDataParallel", "Reducer", "batch_isend")
PARTS = ("kernel", "copies", "waiting", "rest")


@contextlib.contextmanager
def waits_named() -> Iterator[None]:
    """Makes every wait of Python for a collective an event named wait in profiles."""
    work: Any = torch._C._distributed_c10d.Work
    plain = work.wait

    def wait(self: Any, *limit: Any) -> Any:
        with record_function("wait"):
            return plain(self, *limit)

    work.wait = wait
    try:
        yield
    finally:
        work.wait = plain


def part_of(event: str) -> str:
    """The part of a step to which an event of the profiler belongs."""
    if any(event.startswith(name) for name in WAITS):
        return "waiting"
    if event.startswith(("aten::", "mkldnn::")):
        return "kernel" if any(name in event for name in KERNELS) else "copies"
    return "rest"


def shares(step: Callable[[], object]) -> dict[str, float]:
    """Part -> fraction of the wall time of one step.

    Waits of torch inside C++ (DDP's reducer) and Python itself are in the rest. Time in which the
    machine ran another rank counts where it happened.
    """
    with waits_named(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        begin = time.perf_counter()
        step()
        wall = time.perf_counter() - begin
    spent = dict.fromkeys(PARTS, 0.0)
    for event in found.key_averages():
        spent[part_of(event.key)] += event.self_cpu_time_total / 1e6
    spent["rest"] = max(0.0, wall - spent["kernel"] - spent["copies"] - spent["waiting"])
    total = sum(spent.values())
    return {part: seconds / total for part, seconds in spent.items()}
