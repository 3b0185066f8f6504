"""Convolutions whose ranks compute all channels of a box, from all channels of rows.

Every rank has the whole weights. What it reads may lie in rows that others own, and
several ranks may compute the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.adjoint import tied
from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, Interval, Window, shape
from synth.runtime.kernels.autocast import lowered
from synth.runtime.kernels.frame import frame_of, surrounded
from synth.runtime.kernels.routines import recorded_convolution
from synth.runtime.rules.access import Access, Same, Spans, Whole, Windows
from synth.runtime.rules.rule import Rule, pulled

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def convolution(module: Any, source: Layout, out: Layout) -> Rule:
    """`torch.nn.Conv1d/2d/3d` or a transposed one, with zeros as padding.

    A module with an attribute `zeros` pads by these, before and after, in place of its
    own padding.
    """
    if isinstance(module, TRANSPOSED):
        return _transposed(module, source, out)
    dims = len(source.whole) - 2
    numbers = zip(
        source.whole[2:],
        module.kernel_size,
        module.stride,
        module.dilation,
        zeros_before(module, dims),
        strict=True,
    )
    windows = tuple(Window(*each) for each in numbers)
    rows = (Windows(dim, window) for dim, window in enumerate(windows, 2))
    accesses: list[Access] = [Same(0), Whole(source.whole[1]), *rows]
    call = _Convolution(windows, out.mine, module.groups)
    return Rule(out, (pulled(source, accesses, out),), call)


def zeros_before(module: Any, dims: int) -> tuple[int, ...]:
    """Zeros before the first row, per spatial dimension."""
    zeros = getattr(module, "zeros", None)
    padding = module.padding if zeros is None else zeros
    if padding == "valid":
        return (0,) * dims
    if padding == "same":
        spans = zip(module.dilation, module.kernel_size, strict=True)
        return tuple(step * (taps - 1) // 2 for step, taps in spans)
    return tuple(
        each[0] if isinstance(each, tuple | list) else each for each in padding
    )


@dataclass(frozen=True)
class _Convolution:
    """The own box of the result. rows: the own box."""

    windows: tuple[Window, ...]
    own: Box
    groups: int

    def __call__(
        self,
        shard: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """From the rows that the box reads; a box that reads none gets the bias."""
        shard, weight, bias = _alike(lowered(shard), weight, bias)
        if not shard.numel():
            return _filled(shard, shape(self.own), weight, bias)
        block = {str(d): each for d, each in enumerate(self.own[2:])}
        windows = {str(d): each for d, each in enumerate(self.windows)}
        frame = frame_of(block, windows)
        wide = surrounded(shard, block, windows, frame.zeros)
        return recorded_convolution(wide, weight, bias, frame, self.groups)


def _transposed(module: Any, source: Layout, out: Layout) -> Rule:
    numbers = zip(
        range(2, len(out.whole)),
        source.whole[2:],
        out.whole[2:],
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        strict=True,
    )
    rows = tuple(_rows_added(*each) for each in numbers)
    accesses: list[Access] = [Same(0), Whole(source.whole[1]), *rows]
    operand = pulled(source, accesses, out)
    assert isinstance(operand.reads, Layout)
    steps = tuple(module.stride), tuple(module.padding), tuple(module.dilation)
    first = [low for low, _ in operand.reads.mine[2:]]
    call = _Transposed(*steps, out.mine, tuple(first), module.groups)
    return Rule(out, (operand,), call)


def _rows_added(
    dim: int,
    size: int,
    made: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
) -> Spans:
    """The input rows that add to each row of the result."""
    reach = dilation * (kernel - 1)

    def between(row: int) -> Interval:
        first = -((reach - row - padding) // stride)
        last = max(first, (row + padding) // stride + 1)
        return min(max(first, 0), size), min(max(last, 0), size)

    def taps(row: int) -> tuple[int, ...]:
        sums = (row + padding - dilation * tap for tap in reversed(range(kernel)))
        rows = (each // stride for each in sums if each % stride == 0)
        return tuple(each for each in rows if 0 <= each < size)

    rows = range(made)
    return Spans(dim, tuple(map(between, rows)), tuple(map(taps, rows)))


@dataclass(frozen=True)
class _Transposed:
    """The own box of the result. first: the first row that is read, by dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    own: Box
    first: tuple[int, ...]
    groups: int

    def __call__(
        self,
        shard: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """torch makes all rows to which the rows add; these are cut to the own box."""
        shard, weight, bias = _alike(lowered(shard), weight, bias)
        if not shard.numel():
            return _filled(shard, shape(self.own), weight, bias)
        none = (0,) * len(self.stride)
        made = torch.convolution(
            *(shard, weight, None, self.stride, none, self.dilation),
            *(True, none, self.groups),
        )
        edges: list[int] = []
        numbers = zip(
            self.own[2:],
            self.first,
            self.stride,
            self.padding,
            made.shape[2:],
            strict=True,
        )
        for (low, high), first, stride, padding, rows in numbers:
            begin = first * stride - padding
            edges = [begin - low, high - begin - rows, *edges]
        made = functional.pad(made, edges)
        return made if bias is None else made + _per_channel(bias, made)


def _alike(
    shard: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Weight and bias in the dtype of the input, which autocast may have lowered."""
    kind = shard.dtype
    return shard, weight.to(kind), None if bias is None else bias.to(kind)


def _filled(
    shard: torch.Tensor,
    own: Sequence[int],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """A box of which every word is the bias of its channel; it may have no words."""
    zeros = tied(shard.new_zeros(own), shard, weight, bias)
    if bias is None or not zeros.numel():  # an empty box has no channels, either
        return zeros
    return zeros + _per_channel(bias, zeros)


def _per_channel(bias: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return bias.reshape(1, -1, *[1] * (like.dim() - 2))
