"""What the GPU itself does: products, convolutions and copies, by dtype."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from benchmarks.gpu.timing import emptied, in_turns, settings

DTYPES = {
    "float64": (torch.float64, False),
    "float32": (torch.float32, False),
    "TF32": (torch.float32, True),
    "bfloat16": (torch.bfloat16, True),
    "float16": (torch.float16, True),
}
CONVS = {  # samples, channels, filters, taps, rows
    "2-D, 256 channels at 56²": (64, 256, 256, 3, (56, 56)),
    "2-D, 512 channels at 14²": (64, 512, 512, 3, (14, 14)),
    "3-D, 64 channels at 64³": (4, 64, 64, 3, (64, 64, 64)),
    "3-D, 16 channels at 128³": (1, 16, 32, 3, (128, 128, 128)),
}


def measured(device: torch.device, rounds: int, small: bool) -> list[dict[str, Any]]:
    """Operations per second of each job by dtype, and bytes per second of a copy."""
    found = []
    for name, (dtype, tf32) in DTYPES.items():
        with settings(tf32):
            for job, flops, step in jobs(dtype, device, small):
                seconds = statistics.median(in_turns({job: step}, rounds, device)[job])
                found.append({"job": job, "dtype": name, "seconds": seconds, "rate": flops / seconds})
            emptied(device)
    found += memory(device, rounds, small)
    return found


def jobs(dtype: torch.dtype, device: torch.device, small: bool) -> list[tuple[str, int, Callable[[], Any]]]:
    """(name, operations, step) of a matrix product and of convolutions in both layouts, forward."""
    made: Any = {"dtype": dtype, "device": device}
    size = 32 if small else 4096 if dtype == torch.float64 else 8192
    one, other = torch.randn(size, size, **made), torch.randn(size, size, **made)
    found: list[tuple[str, int, Callable[[], Any]]] = [
        (f"matrix product {size}", 2 * size**3, lambda: one @ other)
    ]
    for name, (samples, channels, filters, taps, rows) in CONVS.items():
        if dtype == torch.float64:
            continue
        edge, dims = rows, len(rows)
        if small:
            samples, channels, filters, edge = 1, 4, 4, (6,) * dims
        inputs = torch.randn(samples, channels, *edge, **made)
        ker = torch.randn(filters, channels, *[taps] * dims, **made)
        conv = {2: F.conv2d, 3: F.conv3d}[dims]
        last: Any = {2: torch.channels_last, 3: torch.channels_last_3d}[dims]
        flops = 2 * samples * filters * ker[0].numel() * inputs[0, 0].numel()
        for layout in (torch.contiguous_format, last):
            x, w = inputs.contiguous(memory_format=layout), ker.contiguous(memory_format=layout)
            text = f"{name}{'' if layout is torch.contiguous_format else ', channels last'}"
            found.append((text, flops, lambda c=conv, x=x, w=w: c(x, w, None, 1, 1)))  # type: ignore[misc]
    return found


def memory(device: torch.device, rounds: int, small: bool) -> list[dict[str, Any]]:
    """A copy, an addition, and the call of a convolution so small that only its launch takes time."""
    words = 2**16 if small else 2**29
    one, other = torch.randn(words, device=device), torch.randn(words, device=device)
    tiny = torch.randn(1, 1, 1, 1, device=device)
    steps: dict[str, tuple[int, Callable[[], Any]]] = {
        "copy, bytes read and written": (8 * words, lambda: other.copy_(one)),
        "addition, bytes read and written": (12 * words, lambda: other.add_(one)),
        "call of a tiny convolution": (0, lambda: F.conv2d(tiny, tiny)),
    }
    found = []
    for name, (size, step) in steps.items():
        seconds = statistics.median(in_turns({name: step}, rounds, device)[name])
        found.append({"job": name, "dtype": "", "seconds": seconds, "rate": size / seconds})
    return found
