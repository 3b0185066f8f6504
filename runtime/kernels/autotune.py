"""Autotuning: the local kernel in several variants; the first calls find the fastest.

    direct          torch's convolution, or its gradient, on the tensors as they are
    channels-last   the same, copied to and from channels-last order
    unfold          the windows are copied out, then one matrix product (explicit GEMM)
    winograd        fewer products, between transforms of tiles; for 3 taps

Which variant is fastest depends on shapes, machine and library, as swCaffe found (Li et
al., CLUSTER 2018, section 4: mixed explicit and implicit GEMM). Autotuning is off
unless it is asked for. It changes the order of sums from run to run, rounding errors
are up to ten times larger, and windows and transforms take memory that no plan counts.
Without autotuning every kernel is direct.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from synth.runtime.kernels.frame import Frame

Variant = Callable[[], torch.Tensor]
TRIES = 3  # timed calls per variant; the shortest counts, so the first may warm up
TRIALS = 4 * TRIES  # calls after which all variants of a kernel are timed
SLOW = 3.0  # a variant slower than this many times the best one is not tried again
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}

Key = tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype]  # pass, In, Ker
ENABLED = ContextVar("synth_autotune", default=False)


class Tuner:
    """Measured seconds of one network's kernels: kernel -> variant -> seconds.

    enabled: whether kernels are timed. If not, every kernel is direct.
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self.times: dict[Key, dict[str, list[float]]] = {}

    def run(
        self, key: Key, variants: dict[str, Variant], device: torch.device
    ) -> torch.Tensor:
        """The result of one variant: each is timed in turn, then the fastest runs."""
        times = self.times.setdefault(key, {name: [] for name in variants})
        rarest = min(candidates(times), key=lambda name: len(times[name]))
        if len(times[rarest]) >= TRIES:
            return variants[min(variants, key=lambda name: min(times[name]))]()
        begin = clock(device)
        result = variants[rarest]()
        times[rarest].append(clock(device) - begin)
        return result

    def report(self) -> list[str]:
        """One line of text for every kernel whose variants have all been timed."""
        lines = []
        for key, times in self.times.items():
            if all(len(times[name]) >= TRIES for name in candidates(times)):
                order = sorted(times, key=lambda name: min(times[name]))
                shown = (f"{name} {min(times[name]) * 1e3:.2f} ms" for name in order)
                name, wide, ker, dtype = key
                lines.append(
                    f"{name} {list(wide)} * {list(ker)} {dtype}: {', '.join(shown)}"
                )
        return lines


def tune(on: bool = True) -> None:
    """Let networks and layers that are created from now on autotune their kernels.

    The first calls of each kernel time its variants, later calls use the fastest one.
    The setting holds for the calling thread (a `contextvars` context). An existing
    network or layer is changed by `network.context.tuner.enabled = True`.
    """
    ENABLED.set(on)


def default_tuner() -> Tuner:
    """A tuner without times, enabled if `tune` was called."""
    return Tuner(ENABLED.get())


def clock(device: torch.device) -> float:
    """Seconds; CPU seconds of a single thread, as ranks may outnumber the cores."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time() if alone else time.perf_counter()


def candidates(times: dict[str, list[float]]) -> list[str]:
    """The variants that may still be the fastest: those that were never slow."""
    least = min((min(each) for each in times.values() if each), default=0.0)
    return [n for n, each in times.items() if not each or min(each) <= SLOW * least]


def windows_of(wide: torch.Tensor, frame: Frame, taps: tuple[int, ...]) -> torch.Tensor:
    """In [b, c, *rows] as windows [b, c, *rows, *taps]; a view, except for padding."""
    if any(frame.padding):
        wide = F.pad(wide, [n for n in reversed(frame.padding) for _ in range(2)])
    rows = []
    for dim, tap in enumerate(taps):
        span = frame.dilation[dim] * (tap - 1) + 1
        rows.append((wide.shape[dim + 2] - span) // frame.stride[dim] + 1)
    outer, inner = wide.stride()[:2], wide.stride()[2:]
    along = [n * step for n, step in zip(inner, frame.stride, strict=True)]
    inside = [n * step for n, step in zip(inner, frame.dilation, strict=True)]
    sizes = *wide.shape[:2], *rows, *taps
    return wide.as_strided(sizes, (*outer, *along, *inside))


def unfold_forward(wide: torch.Tensor, ker: torch.Tensor, frame: Frame) -> torch.Tensor:
    """Out as one matrix product over the windows; for one group."""
    dims = len(frame.stride)
    windows = windows_of(wide, frame, tuple(ker.shape[2:]))
    summed = [1, *range(2 + dims, 2 + 2 * dims)], list(range(1, 2 + dims))
    out: torch.Tensor = torch.tensordot(windows, ker, summed)
    return out.movedim(-1, 1).contiguous()


def unfold_filter(
    wide: torch.Tensor, dout: torch.Tensor, frame: Frame, taps: tuple[int, ...]
) -> torch.Tensor:
    """dKer as one matrix product over the windows; for one group."""
    dims = len(frame.stride)
    windows = windows_of(wide, frame, taps)
    rows = [0, *range(2, 2 + dims)]
    window_rows = windows[(slice(None), slice(None), *map(slice, dout.shape[2:]))]
    dker: torch.Tensor = torch.tensordot(dout, window_rows, (rows, rows))
    return dker


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in channels-last order."""
    return tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim() - 2])


def fits_in_memory(wide: torch.Tensor, taps: tuple[int, ...]) -> bool:
    """Whether copied-out windows take at most one GiB."""
    return wide.numel() * wide.element_size() * math.prod(taps) <= 2**30
