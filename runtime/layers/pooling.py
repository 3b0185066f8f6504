"""What reads rows of its neighbours: pooling and resizing, on shares.

Each step is made for the layout of its input and tells that of its output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.redistribute import (
    Count,
    Layout,
    apart,
    collect,
    dealt,
    even,
    move,
)
from synth.runtime.grid.boxes import (
    Box,
    Window,
    input_rows,
    shape,
    volume,
    zeros_around,
)
from synth.runtime.layers.step import Step

MOST = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
MEANS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
ADAPTIVE_MOST = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
NEAREST = ("nearest", "nearest-exact")
LINEAR = ("linear", "bilinear", "trilinear")


class Pool(Step):
    """Maximum or average over windows, with the rows that neighbours own."""

    def __init__(
        self,
        source: Layout,
        windows: Sequence[Window],
        out: Sequence[int],
        count: Count,
        average: bool,
        padded: bool = True,
    ) -> None:
        super().__init__()
        self.source, self.windows, self.count = source, tuple(windows), count
        self.average, self.padded = average, padded
        self.out = (*source.whole[:2], *out)
        self.lay_out([self._near(box, out) for box in source.boxes])

    def _near(self, box: Box, out: Sequence[int]) -> Box:
        """The part of the output that lies where a box of the input does."""
        rows = [
            (-(-low * n // window.size), -(-high * n // window.size))
            for (low, high), n, window in zip(box[2:], out, self.windows, strict=True)
        ]
        return (*box[:2], *rows)

    def lay_out(self, boxes: Sequence[Box]) -> None:
        """Give every rank a box of the output; channels and samples as in the input."""
        self.layout = Layout(self.out, tuple(boxes))
        wanted = (
            (*box[:2], *map(input_rows, box[2:], self.windows))
            for box in self.layout.boxes
        )
        self.wanted = Layout(self.source.whole, tuple(wanted))

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the pooled."""
        share = move(share, self.source, self.wanted, self.count)
        rows = self.layout.mine[2:]
        if volume(self.layout.mine) == 0:
            return share.new_zeros(shape(self.layout.mine)) + share.sum() * 0
        around: list[int] = []
        for interval, window in zip(rows, self.windows, strict=True):
            around = [*zeros_around(interval, window), *around]
        sizes = [w.kernel for w in self.windows], [w.stride for w in self.windows]
        dims = len(self.windows) - 1
        if not self.average:
            most = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
            full = functional.pad(share, around, value=-math.inf)
            dilation = [w.dilation for w in self.windows]
            return most[dims](full, *sizes, 0, dilation)
        mean: Any = (
            functional.avg_pool1d,
            functional.avg_pool2d,
            functional.avg_pool3d,
        )[dims]
        result: torch.Tensor = mean(functional.pad(share, around), *sizes)
        if not self.padded:
            ones = functional.pad(torch.ones_like(share), around)
            result = result / mean(ones, *sizes)
        return result


class GlobalPool(Step):
    """The mean over all positions of a channel: partial sums to one owner."""

    def __init__(self, source: Layout, keep: bool, count: Count) -> None:
        super().__init__()
        self.source, self.keep, self.count = source, keep, count
        flat = [box[:2] for box in source.boxes]
        self.lies = source if apart(flat) else even(source.whole)
        self.held = Layout(source.whole[:2], tuple(box[:2] for box in self.lies.boxes))
        self.flat = dealt(self.held)
        ones = len(source.whole) - 2 if keep else 0
        self.layout = Layout(
            (*source.whole[:2], *[1] * ones),
            tuple((*box, *[(0, 1)] * ones) for box in self.flat.boxes),
        )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The means of the own samples and channels."""
        share = move(share, self.source, self.lies, self.count)
        sums = share.flatten(2).sum(2) / math.prod(self.source.whole[2:])
        means = collect(sums, self.held, self.flat, self.count)
        return means.reshape(shape(self.layout.mine))


class Resized(Step):
    """Nearest or linear interpolation, with the rows that neighbours own.

    rows: per spatial dimension, the position in the input that each output row is at.
    """

    def __init__(
        self, source: Layout, rows: Sequence[torch.Tensor], count: Count
    ) -> None:
        super().__init__()
        self.source, self.positions, self.count = source, tuple(rows), count
        self.lay_out([self._near(box) for box in source.boxes])

    def _near(self, box: Box) -> Box:
        """The part of the output that lies where a box of the input does."""
        cuts = [
            (-(-low * len(rows) // size), -(-high * len(rows) // size))
            for (low, high), size, rows in zip(
                box[2:], self.source.whole[2:], self.positions, strict=True
            )
        ]
        return (*box[:2], *cuts)

    def lay_out(self, boxes: Sequence[Box]) -> None:
        """Give every rank a box of the output; channels and samples as in the input."""
        out = [len(rows) for rows in self.positions]
        self.layout = Layout((*self.source.whole[:2], *out), tuple(boxes))
        wanted = ((*box[:2], *map(_between, self.positions, box[2:])) for box in boxes)
        self.wanted = Layout(self.source.whole, tuple(wanted))
        ends = zip(self.layout.mine[2:], self.wanted.mine[2:], strict=True)
        self.rows = [
            rows[low:high] - first
            for rows, ((low, high), (first, _)) in zip(
                self.positions, ends, strict=True
            )
        ]

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the resized."""
        share = move(share, self.source, self.wanted, self.count)
        for dim, at in enumerate(self.rows, 2):
            low = at.floor()
            weight = (at - low).to(share.device, share.dtype)
            before = low.long().to(share.device)
            after = (before + 1).clamp(max=max(0, share.shape[dim] - 1))
            result = share.index_select(dim, before)
            if weight.any():
                each = [1] * share.dim()
                each[dim] = -1
                more = share.index_select(dim, after)
                result = torch.lerp(result, more, weight.reshape(each))
            share = result
        return share


def _between(rows: torch.Tensor, interval: tuple[int, int]) -> tuple[int, int]:
    """The input rows that some output rows lie between."""
    at = rows[slice(*interval)]
    if not len(at):
        return 0, 0
    return int(at[0].floor()), int(at[-1].ceil()) + 1


def pooled(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    dims = len(source.whole) - 2

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value,) * dims

    average = isinstance(module, MEANS)
    if getattr(module, "return_indices", False) or (average and module.ceil_mode):
        return None
    if getattr(module, "divisor_override", None) is not None:
        return None
    numbers = zip(
        source.whole[2:],
        each(module.kernel_size),
        each(module.stride),
        each(getattr(module, "dilation", 1)),
        each(module.padding),
        strict=True,
    )
    windows = [Window(*each_dim) for each_dim in numbers]
    padded = getattr(module, "count_include_pad", True)
    return Pool(source, windows, out[2:], count, average, padded)


def adaptive(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    """Windows of one size, where the input has a multiple of the output's positions."""
    pairs = list(zip(source.whole[2:], out[2:], strict=True))
    if any(size % n for size, n in pairs) or getattr(module, "return_indices", False):
        return None
    windows = [Window(size, size // n, size // n) for size, n in pairs]
    return Pool(source, windows, out[2:], count, isinstance(module, ADAPTIVE))


def resized(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    """Torch itself says where output rows lie: it resizes the numbers of the rows."""
    if module.mode not in (*NEAREST, *LINEAR):
        return None
    scale, dims = module.scale_factor, len(out) - 2
    if getattr(module, "recompute_scale_factor", None) or dims < 1:
        return None
    scales = scale if isinstance(scale, tuple | list) else (scale,) * dims
    mode = "linear" if module.mode in LINEAR else module.mode
    corners = {"align_corners": module.align_corners} if mode == "linear" else {}
    rows = []
    for size, n, by in zip(source.whole[2:], out[2:], scales, strict=True):
        numbers = torch.arange(size, dtype=torch.float64).reshape(1, 1, -1)
        how = {"size": n} if by is None else {"scale_factor": by}
        at = functional.interpolate(numbers, mode=mode, **how, **corners)
        rows.append(at.flatten())
    return Resized(source, rows, count)
