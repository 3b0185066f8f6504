"""Seconds of steps that take turns, and the memory that one of them takes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

Step = Callable[[], object]
SERIES = 0.12  # seconds of steps in a row, between two looks at the clock
WARM = 4  # steps before the first timed one: cuDNN tries its kernels in the first


def wait(device: torch.device) -> None:
    """Wait for all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def series(step: Step, calls: int, device: torch.device) -> float:
    """Seconds of one step of several in a row."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(calls):
        step()
    wait(device)
    return (time.perf_counter() - begin) / calls


def in_turns(steps: Mapping[str, Step], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each step in every round; the order rotates and reverses from round to round."""
    calls = {}
    for name, step in steps.items():
        series(step, WARM, device)
        calls[name] = max(1, min(200, int(SERIES / max(series(step, 2, device), 1e-9))))
    found: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        turned = names[number % len(names) :] + names[: number % len(names)]
        for name in turned if number % 2 else turned[::-1]:
            found[name].append(series(steps[name], calls[name], device))
    return found


def ratio(times: Mapping[str, list[float]], peer: str, ours: str) -> float:
    """The peer's time by ours: the median over the rounds of the quotient in one round."""
    return statistics.median(a / b for a, b in zip(times[peer], times[ours], strict=True))


def median(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median seconds by name."""
    return {name: statistics.median(each) for name, each in times.items()}


def peak_bytes(step: Step, device: torch.device) -> int:
    """The most bytes that torch had allocated in a step beyond none at all; 0 without a GPU."""
    if device.type != "cuda":
        step()
        return 0
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    wait(device)
    return torch.cuda.max_memory_allocated(device)


@contextmanager
def settings(tf32: bool) -> Iterator[None]:
    """cuDNN tries its kernels; float32 with or without TF32, in convolutions and in matrix products."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, tf32, tf32
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def emptied(device: torch.device) -> None:
    """Give back the memory of what is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
