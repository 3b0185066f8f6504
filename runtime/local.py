"""The local kernel: torch's own convolution on the rows that one block reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from runtime.blocks import Interval, Window, zeros_around


def convolve(
    conv: Callable[..., torch.Tensor],
    in_tile: torch.Tensor,
    ker_tile: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
) -> torch.Tensor:
    """Out of one block, from exactly the input rows that it reads.

    `conv` is torch's conv1d, conv2d or conv3d. Shapes: In [b, c, *rows], Ker
    [k, c, *taps] and Out [b, k, *rows]; with groups In [b, g, c, *rows], Ker
    [g, k, c, *taps] and Out [b, g, k, *rows].
    """
    rows = [block[axis] for axis in windows]
    lead = in_tile.shape[: -len(rows)][:-1] + ker_tile.shape[-len(rows) - 2 :][:1]
    out_shape = (*lead, *(high - low for low, high in rows))
    if not (in_tile.numel() and ker_tile.numel() and all(out_shape)):
        return in_tile.new_zeros(out_shape)
    groups = ker_tile.shape[0] if ker_tile.dim() == len(rows) + 3 else 1
    if ker_tile.dim() == len(rows) + 3:
        in_tile, ker_tile = in_tile.flatten(1, 2), ker_tile.flatten(0, 1)
    zeros = [zeros_around(block[axis], window) for axis, window in windows.items()]
    padding = [before for before, _ in zeros]
    steps = [window.stride for window in windows.values()]
    if not all(0 <= b - a < step for (b, a), step in zip(zeros, steps, strict=True)):
        # More zeros on one side than `padding=` can say: write them out.
        in_tile = F.pad(in_tile, [n for pair in reversed(zeros) for n in pair])
        padding = [0] * len(rows)
    dilation = [window.dilation for window in windows.values()]
    out = conv(in_tile, ker_tile, None, steps, padding, dilation, groups)
    return out.reshape(out_shape)
