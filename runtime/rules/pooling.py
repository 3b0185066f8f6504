"""Pooling, with the rows that neighbours own.

Averages of half precision are summed in float32 and rounded once, as torch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import smallest, sum_dtype
from synth.runtime.grid.boxes import Box, Window, first_rows, zeros_around
from synth.runtime.kernels.autocast import Operator
from synth.runtime.rules.access import Same, Windows
from synth.runtime.rules.rule import Rule, in_one_dtype, pulled, where_words

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVG_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
LP_POOLS = (nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)
ADAPTIVE_AVG = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
ADAPTIVE_MAX = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)


@dataclass(frozen=True)
class Pool:
    """Maximum, average or norm of windows, of the rows that an own box reads.

    rows: the own rows of the result. name: of torch's operator, "avg_pool", "lp_pool"
    or "max_pool". padded: whether an average counts the zeros of the padding. norm: the
    power of "lp_pool".
    """

    windows: tuple[Window, ...]
    rows: Box
    name: str
    padded: bool = True
    norm: float = 0.0

    def __call__(self, shard: torch.Tensor) -> torch.Tensor:
        """The own box of the result."""
        around = [
            zeros_around(interval, window)
            for interval, window in zip(self.rows, self.windows, strict=True)
        ]
        plain = all(map(pads_itself, around, self.windows))
        if self.name != "max_pool":  # a 3-D average takes no fewer rows than its kernel
            pairs = zip(shard.shape[2:], self.windows, strict=True)
            plain = plain and all(size >= window.kernel for size, window in pairs)
        padding = [before if plain else 0 for before, _ in around]
        zeros = [] if plain else [n for pair in reversed(around) for n in pair]
        if self.name == "lp_pool":
            return self._norm(shard, zeros)
        made = self._average if self.name == "avg_pool" else self._max
        return made(shard, zeros, padding)

    def _norm(self, shard: torch.Tensor, zeros: list[int]) -> torch.Tensor:
        pool = getattr(functional, f"lp_pool{len(self.windows)}d")
        full = functional.pad(shard, zeros) if any(zeros) else shard
        kernel, stride = zip(*((w.kernel, w.stride) for w in self.windows), strict=True)
        one = len(self.windows) == 1  # torch takes numbers there, no tuples
        sizes = (kernel[0], stride[0]) if one else (kernel, stride)
        made: torch.Tensor = pool(full, self.norm, *sizes)
        return made

    def _max(
        self, shard: torch.Tensor, zeros: list[int], padding: list[int]
    ) -> torch.Tensor:
        pool = getattr(functional, f"max_pool{len(self.windows)}d")
        least = smallest(shard.dtype)
        full = functional.pad(shard, zeros, value=least) if any(zeros) else shard
        kernel, stride, dilation = zip(
            *((w.kernel, w.stride, w.dilation) for w in self.windows), strict=True
        )
        made: torch.Tensor = pool(full, kernel, stride, padding, dilation)
        return made

    def _average(
        self, shard: torch.Tensor, zeros: list[int], padding: list[int]
    ) -> torch.Tensor:
        mean: Any = getattr(functional, f"avg_pool{len(self.windows)}d")
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


def pool(module: Any, source: Layout, out: Layout) -> Rule:
    """A pooling with windows of one size. out: see `scaled`, or as a plan has it."""
    dims = len(source.whole) - 2

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value,) * dims

    name = "avg_pool" if isinstance(module, AVG_POOLS) else "max_pool"
    name = "lp_pool" if isinstance(module, LP_POOLS) else name
    numbers = zip(
        source.whole[2:],
        each(module.kernel_size),
        each(module.kernel_size if module.stride is None else module.stride),
        each(getattr(module, "dilation", 1)),
        each(getattr(module, "padding", 0)),
        strict=True,
    )
    windows = tuple(Window(*each_dim) for each_dim in numbers)
    padded = getattr(module, "count_include_pad", True)
    norm = float(getattr(module, "norm_type", 0))
    call = Pool(windows, out.mine[2:], name, padded, norm)
    rows = (Windows(dim, each) for dim, each in enumerate(windows, 2))
    operator = pool_operator(name, dims, norm)
    local = in_one_dtype("pooling", operator, where_words(call, out))
    return Rule(out, (pulled(source, (Same(0), Same(1), *rows), out),), local)


def scaled(source: Layout, out: Sequence[int]) -> Layout:
    """The layout of a result with other spatial extents than its input.

    Samples and channels are those of the input's box. An interval of rows is scaled
    with the extents, and its ends are rounded up.
    """
    scales = list(zip(source.whole[2:], out[2:], strict=True))
    boxes = (
        (
            *box[:2],
            *(
                first_rows(rows, size, extent)
                for rows, (size, extent) in zip(box[2:], scales, strict=True)
            ),
        )
        for box in source.boxes
    )
    return source.with_boxes(out, boxes)


@cache
def pool_operator(name: str, dims: int, norm: float = 0.0) -> Operator:
    """torch's own pooling, called with one word; the same object for the same name.

    norm: the power of "lp_pool", which is a maximum where it is infinite.
    """
    pool = getattr(functional, f"{name}{dims}d")

    def one(word: torch.Tensor) -> torch.Tensor:
        numbers = (norm, 1) if name == "lp_pool" else (1,)
        result: torch.Tensor = pool(word.expand(1, 1, *[1] * dims), *numbers)
        return result

    return one
