"""Pooling of shards, with the rows that neighbours own.

Each step is created for the layout of its input and has the layout of its output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.layout import Layout, disjoint, even, split_copies
from synth.runtime.comm.redistribute import Count, redistribute, sum_to_owners
from synth.runtime.grid.boxes import (
    Box,
    Window,
    input_rows,
    shape,
    volume,
    zeros_around,
)
from synth.runtime.layers.step import Step, scaled_boxes

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVG_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_AVG = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
ADAPTIVE_MAX = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)


class Pool(Step):
    """Maximum or average over windows.

    extents: of the output's spatial dimensions.
    average: the average, else the maximum.
    padded: whether an average counts the zeros of the padding.
    """

    def __init__(
        self,
        source: Layout,
        windows: Sequence[Window],
        extents: Sequence[int],
        count: Count,
        average: bool,
        padded: bool = True,
    ) -> None:
        super().__init__()
        self.source, self.windows, self.count = source, tuple(windows), count
        self.average, self.padded = average, padded
        self.out_shape = (*source.whole[:2], *extents)
        self.set_boxes(scaled_boxes(source, extents))

    def set_boxes(self, boxes: Sequence[Box]) -> None:
        """Set each rank's box of the output; samples and channels as in the input."""
        self.layout = self.source.with_boxes(self.out_shape, boxes)
        wanted = (
            (*box[:2], *map(input_rows, box[2:], self.windows))
            for box in self.layout.boxes
        )
        self.wanted = self.source.with_boxes(self.source.whole, wanted)

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
        self.wanted = source if disjoint(flat) else even(source.whole, source.ranks)
        boxes = (box[:2] for box in self.wanted.boxes)
        self.held = source.with_boxes(source.whole[:2], boxes)
        self.owned = split_copies(self.held)
        ones = len(source.whole) - 2 if keep else 0
        self.layout = source.with_boxes(
            (*source.whole[:2], *[1] * ones),
            ((*box, *[(0, 1)] * ones) for box in self.owned.boxes),
        )

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The means of the own samples and channels."""
        shard = redistribute(shard, self.source, self.wanted, self.count)
        sums = shard.flatten(2).sum(2) / math.prod(self.source.whole[2:])
        means = sum_to_owners(sums, self.held, self.owned, self.count)
        return means.reshape(shape(self.layout.mine))


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
