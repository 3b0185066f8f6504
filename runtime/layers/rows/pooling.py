"""Pooling of shards, with the rows that neighbours own.

Each step is created for the layout of its input and has the layout of its output.
Averages of half precision are summed in float32 and rounded once, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import (
    Box,
    Window,
    input_rows,
    shape,
    volume,
    zeros_around,
)
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.layers.steps.step import Step, scaled_boxes

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVG_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_AVG = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
ADAPTIVE_MAX = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)


class Pool(Step):
    """Maximum or average over windows.

    extents: of the output's spatial dimensions.
    name: of torch's operator, "avg_pool" or "max_pool".
    padded: whether an average counts the zeros of the padding.
    """

    def __init__(
        self,
        source: Layout,
        windows: Sequence[Window],
        extents: Sequence[int],
        count: Count,
        name: str,
        padded: bool = True,
    ) -> None:
        super().__init__()
        self.source, self.windows, self.count = source, tuple(windows), count
        self.average, self.padded = "avg" in name, padded
        self.operator = pool_operator(name, len(self.windows))
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
        dtype = operator_dtype("pooling", self.operator, shard)
        shard = redistribute(shard, self.source, self.wanted, self.count)
        with no_autocast(shard.device):
            return self._pooled(shard.to(dtype))

    def exchanges(self) -> list[Exchange]:
        """The rows of neighbours."""
        return moved(self.source, self.wanted)

    def _pooled(self, shard: torch.Tensor) -> torch.Tensor:
        rows = self.layout.mine[2:]
        if volume(self.layout.mine) == 0:
            return shard.new_zeros(shape(self.layout.mine)) + shard.sum() * 0
        around = [
            zeros_around(interval, window)
            for interval, window in zip(rows, self.windows, strict=True)
        ]
        plain = all(map(pads_itself, around, self.windows))
        if self.average:  # torch's 3-D average takes no fewer rows than its kernel has
            pairs = zip(shard.shape[2:], self.windows, strict=True)
            plain = plain and all(size >= window.kernel for size, window in pairs)
        padding = [before if plain else 0 for before, _ in around]
        zeros = [] if plain else [n for pair in reversed(around) for n in pair]
        if not self.average:
            return self._max(shard, zeros, padding)
        return self._average(shard, zeros, padding)

    def _max(
        self, shard: torch.Tensor, zeros: list[int], padding: list[int]
    ) -> torch.Tensor:
        pools = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
        full = functional.pad(shard, zeros, value=-math.inf) if any(zeros) else shard
        kernel, stride, dilation = zip(
            *((w.kernel, w.stride, w.dilation) for w in self.windows), strict=True
        )
        return pools[len(self.windows) - 1](full, kernel, stride, padding, dilation)

    def _average(
        self, shard: torch.Tensor, zeros: list[int], padding: list[int]
    ) -> torch.Tensor:
        pools = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
        mean: Any = pools[len(self.windows) - 1]
        sizes = [w.kernel for w in self.windows], [w.stride for w in self.windows]
        result: torch.Tensor
        if not any(zeros):
            result = mean(shard, *sizes, padding, count_include_pad=self.padded)
            return result
        if self.padded:
            result = mean(functional.pad(shard, zeros), *sizes)
            return result
        wide = shard.to(sum_dtype(shard.dtype))
        ones = functional.pad(torch.ones_like(wide), zeros)
        result = mean(functional.pad(wide, zeros), *sizes) / mean(ones, *sizes)
        return result.to(shard.dtype)


def pads_itself(zeros: tuple[int, int], window: Window) -> bool:
    """Whether torch's own padding gives a block the zeros that it reads: no copy then.

    torch pads both ends alike, at most half a window, and drops what no window covers.
    """
    before, after = zeros
    return 0 <= before - after < window.stride and before <= window.kernel // 2


# -- the step for a module of torch; None if it cannot be cut --------------------------


def pool_step(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    """The step for a pooling with windows of one size."""
    dims = len(source.whole) - 2

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value,) * dims

    average = isinstance(module, AVG_POOLS)
    name = "avg_pool" if average else "max_pool"
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
    return Pool(source, windows, out[2:], count, name, padded)


@cache
def pool_operator(name: str, dims: int) -> Operator:
    """torch's own pooling, called with one word; the same object for the same name."""
    pool = getattr(functional, f"{name}{dims}d")

    def one(word: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = pool(word.expand(1, 1, *[1] * dims), 1)
        return result

    return one
