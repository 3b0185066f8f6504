"""Pooling and resizing of shards, with the rows that neighbours own.

Each step is created for the layout of its input and has the layout of its output.
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
    disjoint,
    even,
    redistribute,
    split_copies,
    sum_to_owners,
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

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVG_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_AVG = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
ADAPTIVE_MAX = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
NEAREST = ("nearest", "nearest-exact")
LINEAR = ("linear", "bilinear", "trilinear")


class Pool(Step):
    """Maximum or average over windows.

    out: spatial extents of the output.
    average: the average, else the maximum.
    padded: whether an average counts the zeros of the padding.
    """

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
        self.set_boxes([self._matching(box, out) for box in source.boxes])

    def _matching(self, box: Box, out: Sequence[int]) -> Box:
        """The part of the output at the place of a box of the input."""
        rows = [
            (-(-low * n // window.size), -(-high * n // window.size))
            for (low, high), n, window in zip(box[2:], out, self.windows, strict=True)
        ]
        return (*box[:2], *rows)

    def set_boxes(self, boxes: Sequence[Box]) -> None:
        """Set each rank's box of the output; samples and channels as in the input."""
        self.layout = Layout(self.out, tuple(boxes))
        wanted = (
            (*box[:2], *map(input_rows, box[2:], self.windows))
            for box in self.layout.boxes
        )
        self.wanted = Layout(self.source.whole, tuple(wanted))

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        shard = redistribute(shard, self.source, self.wanted, self.count)
        rows = self.layout.mine[2:]
        if volume(self.layout.mine) == 0:
            return shard.new_zeros(shape(self.layout.mine)) + shard.sum() * 0
        zeros: list[int] = []
        for interval, window in zip(rows, self.windows, strict=True):
            zeros = [*zeros_around(interval, window), *zeros]
        return self._average(shard, zeros) if self.average else self._max(shard, zeros)

    def _max(self, shard: torch.Tensor, zeros: list[int]) -> torch.Tensor:
        pools = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
        full = functional.pad(shard, zeros, value=-math.inf)
        kernel, stride, dilation = zip(
            *((w.kernel, w.stride, w.dilation) for w in self.windows), strict=True
        )
        return pools[len(self.windows) - 1](full, kernel, stride, 0, dilation)

    def _average(self, shard: torch.Tensor, zeros: list[int]) -> torch.Tensor:
        pools = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
        mean: Any = pools[len(self.windows) - 1]
        sizes = [w.kernel for w in self.windows], [w.stride for w in self.windows]
        result: torch.Tensor = mean(functional.pad(shard, zeros), *sizes)
        if not self.padded:
            ones = functional.pad(torch.ones_like(shard), zeros)
            result = result / mean(ones, *sizes)
        return result


class GlobalPool(Step):
    """The mean over all positions of a channel: partial sums go to one owner.

    keep: whether the spatial dimensions stay, with extent 1.
    """

    def __init__(self, source: Layout, keep: bool, count: Count) -> None:
        super().__init__()
        self.source, self.keep, self.count = source, keep, count
        flat = [box[:2] for box in source.boxes]
        self.wanted = source if disjoint(flat) else even(source.whole)
        boxes = tuple(box[:2] for box in self.wanted.boxes)
        self.held = Layout(source.whole[:2], boxes)
        self.owned = split_copies(self.held)
        ones = len(source.whole) - 2 if keep else 0
        self.layout = Layout(
            (*source.whole[:2], *[1] * ones),
            tuple((*box, *[(0, 1)] * ones) for box in self.owned.boxes),
        )

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The means of the own samples and channels."""
        shard = redistribute(shard, self.source, self.wanted, self.count)
        sums = shard.flatten(2).sum(2) / math.prod(self.source.whole[2:])
        means = sum_to_owners(sums, self.held, self.owned, self.count)
        return means.reshape(shape(self.layout.mine))


class Resize(Step):
    """Nearest or linear interpolation.

    rows: per spatial dimension, the input position of each output row.
    """

    def __init__(
        self, source: Layout, rows: Sequence[torch.Tensor], count: Count
    ) -> None:
        super().__init__()
        self.source, self.positions, self.count = source, tuple(rows), count
        self.set_boxes([self._matching(box) for box in source.boxes])

    def _matching(self, box: Box) -> Box:
        """The part of the output at the place of a box of the input."""
        cuts = [
            (-(-low * len(rows) // size), -(-high * len(rows) // size))
            for (low, high), size, rows in zip(
                box[2:], self.source.whole[2:], self.positions, strict=True
            )
        ]
        return (*box[:2], *cuts)

    def set_boxes(self, boxes: Sequence[Box]) -> None:
        """Set each rank's box of the output; samples and channels as in the input."""
        out = [len(rows) for rows in self.positions]
        self.layout = Layout((*self.source.whole[:2], *out), tuple(boxes))
        wanted = (
            (*box[:2], *map(_rows_read, self.positions, box[2:])) for box in boxes
        )
        self.wanted = Layout(self.source.whole, tuple(wanted))
        ends = zip(self.layout.mine[2:], self.wanted.mine[2:], strict=True)
        self.rows = [
            rows[low:high] - first
            for rows, ((low, high), (first, _)) in zip(
                self.positions, ends, strict=True
            )
        ]

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        shard = redistribute(shard, self.source, self.wanted, self.count)
        for dim, at in enumerate(self.rows, 2):
            low = at.floor()
            weight = (at - low).to(shard.device, shard.dtype)
            before = low.long().to(shard.device)
            after = (before + 1).clamp(max=max(0, shard.shape[dim] - 1))
            result = shard.index_select(dim, before)
            if weight.any():
                each = [1] * shard.dim()
                each[dim] = -1
                more = shard.index_select(dim, after)
                result = torch.lerp(result, more, weight.reshape(each))
            shard = result
        return shard


def _rows_read(rows: torch.Tensor, interval: tuple[int, int]) -> tuple[int, int]:
    """The input rows that the output rows of an interval interpolate between."""
    at = rows[slice(*interval)]
    if not len(at):
        return 0, 0
    return int(at[0].floor()), int(at[-1].ceil()) + 1


# -- the step for a module of torch; None if it cannot be cut --------------------------


def pool_step(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    """The step for a pooling with windows of one size."""
    dims = len(source.whole) - 2

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value,) * dims

    average = isinstance(module, AVG_POOLS)
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


def adaptive_pool_step(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    """The step for an adaptive pooling whose windows all have one size.

    They do if every spatial extent of the input is a multiple of that of the output.
    """
    pairs = list(zip(source.whole[2:], out[2:], strict=True))
    if any(size % n for size, n in pairs) or getattr(module, "return_indices", False):
        return None
    windows = [Window(size, size // n, size // n) for size, n in pairs]
    return Pool(source, windows, out[2:], count, isinstance(module, ADAPTIVE_AVG))


def resize_step(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    """The step for `torch.nn.Upsample`.

    torch itself determines the positions of output rows: it resizes the row numbers.
    """
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
        target = {"size": n} if by is None else {"scale_factor": by}
        at = functional.interpolate(numbers, mode=mode, **target, **corners)
        rows.append(at.flatten())
    return Resize(source, rows, count)
