"""The local kernel in several forms, of which the first calls find the fastest.

    direct          torch's convolution, or its gradient, on the tensors as they lie
    channels-last   the same, copied to and from channels-last order
    unfold          the windows written out, then one matrix product (explicit GEMM)
    winograd        fewer products, between transforms of tiles; where all taps are 3

Which one wins depends on shapes, machine and library, as swCaffe found (Li et al.,
CLUSTER 2018, section 4: mixed explicit and implicit GEMM). Tuning is asked for, because
sums then come in another order from run to run, rounding is up to ten times larger, and
windows and transforms take memory that no plan counts. Without it every kernel is
direct.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

Form = Callable[[], torch.Tensor]
TRIES = 3  # timed calls per form; the least counts, so the first may warm up
TRIALS = 4 * TRIES  # calls after which all forms of a kernel are timed
SLOW = 3.0  # times the best so far: a form that was so slow is not tried again
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


Key = tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype]  # pass, In, Ker


class Tuning:
    """What has been timed: kernel -> form -> seconds; `on` where it was asked for."""

    on = False
    times: ClassVar[dict[Key, dict[str, list[float]]]] = {}


def tune(on: bool = True) -> None:
    """From now on the local kernels of this process are timed in several forms.

    The first calls of each kernel try them, all later ones take the fastest.
    """
    Tuning.on = on


class Fit(NamedTuple):
    """How a block's rows are given to torch: zeros to write out, what torch adds."""

    zeros: list[int]  # as `F.pad` takes them, the last dimension first; often none
    padding: list[int]
    stride: list[int]
    dilation: list[int]


def fastest(key: Key, forms: dict[str, Form], device: torch.device) -> torch.Tensor:
    """The result of one of the forms: each is timed in turn, then the best is used."""
    times = Tuning.times.setdefault(key, {name: [] for name in forms})
    rarest = min(hopeful(times), key=lambda name: len(times[name]))
    if len(times[rarest]) >= TRIES:
        return forms[min(forms, key=lambda name: min(times[name]))]()
    begin = clock(device)
    result = forms[rarest]()
    times[rarest].append(clock(device) - begin)
    return result


def clock(device: torch.device) -> float:
    """Seconds; where one thread computes its own, as ranks may outnumber the cores."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time() if alone else time.perf_counter()


def hopeful(times: dict[str, list[float]]) -> list[str]:
    """The forms that may still turn out to be the fastest: all that were never slow."""
    least = min((min(each) for each in times.values() if each), default=0.0)
    return [n for n, each in times.items() if not each or min(each) <= SLOW * least]


def chosen() -> list[str]:
    """For people: the form of every kernel that was timed to the end."""
    lines = []
    for key, times in Tuning.times.items():
        if all(len(times[name]) >= TRIES for name in hopeful(times)):
            order = sorted(times, key=lambda name: min(times[name]))
            shown = (f"{name} {min(times[name]) * 1e3:.2f} ms" for name in order)
            name, wide, ker, dtype = key
            lines.append(
                f"{name} {list(wide)} * {list(ker)} {dtype}: {', '.join(shown)}"
            )
    return lines


def windows_of(wide: torch.Tensor, fit: Fit, taps: tuple[int, ...]) -> torch.Tensor:
    """In as its windows, [b, c, *rows, *taps]; a view but for the padding."""
    if any(fit.padding):
        wide = F.pad(wide, [n for n in reversed(fit.padding) for _ in range(2)])
    rows = []
    for dim, tap in enumerate(taps):
        frame = fit.dilation[dim] * (tap - 1) + 1
        rows.append((wide.shape[dim + 2] - frame) // fit.stride[dim] + 1)
    flat, lines = wide.stride()[:2], wide.stride()[2:]
    along = [line * step for line, step in zip(lines, fit.stride, strict=True)]
    inside = [line * step for line, step in zip(lines, fit.dilation, strict=True)]
    sizes = *wide.shape[:2], *rows, *taps
    return wide.as_strided(sizes, (*flat, *along, *inside))


def product(wide: torch.Tensor, ker: torch.Tensor, fit: Fit) -> torch.Tensor:
    """Out by one matrix product over the windows; one group."""
    dims = len(fit.stride)
    windows = windows_of(wide, fit, tuple(ker.shape[2:]))
    summed = [1, *range(2 + dims, 2 + 2 * dims)], list(range(1, 2 + dims))
    out: torch.Tensor = torch.tensordot(windows, ker, summed)
    return out.movedim(-1, 1).contiguous()


def filter_product(
    wide: torch.Tensor, dout: torch.Tensor, fit: Fit, taps: tuple[int, ...]
) -> torch.Tensor:
    """dKer by one matrix product over the windows; one group."""
    dims = len(fit.stride)
    windows = windows_of(wide, fit, taps)
    rows = [0, *range(2, 2 + dims)]
    window_rows = windows[(slice(None), slice(None), *map(slice, dout.shape[2:]))]
    dker: torch.Tensor = torch.tensordot(dout, window_rows, (rows, rows))
    return dker


def reordered(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in channels-last order."""
    return tensor.contiguous(memory_format=LAST[tensor.dim() - 2])


def overlooked(wide: torch.Tensor, groups: int) -> bool:
    """Whether torch would take its plain 3-D kernel, several times as slow as oneDNN's.

    So it does on a CPU for one sample of at most 20480 words in its first dimensions.
    """
    return (
        wide.dim() == 5
        and wide.device.type == "cpu"
        and wide.dtype == torch.float32
        and groups == 1
        and math.prod(wide.shape[:4]) <= 20480
        and wide.shape[0] == 1
        and bool(torch.backends.mkldnn.enabled)
    )


def fits_in_memory(wide: torch.Tensor, taps: tuple[int, ...]) -> bool:
    """Whether the windows may be written out: at most a GiB."""
    return wide.numel() * wide.element_size() * math.prod(taps) <= 2**30
