"""Convolutions whose ranks compute all channels of a box, from all channels of rows.

Every rank has the whole weights. What it reads may lie in rows that others own, and
several ranks may compute the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.adjoint import tied
from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, Interval, Window, shape
from synth.runtime.kernels.autocast import lowered
from synth.runtime.kernels.channel_sums import per_channel
from synth.runtime.kernels.frame import frame_of, surrounded
from synth.runtime.kernels.routines import recorded_convolution
from synth.runtime.rules.access import (
    Access,
    Groups,
    Same,
    Spans,
    Whole,
    Windows,
    read_box,
)
from synth.runtime.rules.products import Dims
from synth.runtime.rules.rule import LocalCall, Rule, pulled

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def convolution(module: Any, source: Layout, out: Layout) -> Rule:
    """`torch.nn.Conv1d/2d/3d` or a transposed one, with zeros as padding.

    A module with an attribute `zeros` pads by these, before and after, in place of its
    own padding.
    """
    if isinstance(module, TRANSPOSED):
        return _transposed(module, source, out)
    windows = _windows(module, source.whole)
    rows = (Windows(dim, window) for dim, window in enumerate(windows, 2))
    accesses: list[Access] = [Same(0), Whole(source.whole[1]), *rows]
    call = _Convolution(windows, out.mine, module.groups)
    return Rule(out, (pulled(source, accesses, out),), call)


def computed_kernel(
    module: Any, whole: Sequence[int], out: Sequence[int]
) -> tuple[tuple[Dims, ...], Callable[[Box], LocalCall]]:
    """A convolution whose kernel is a value of the network, as a product of the two.

    module: a layer with the same arguments. whole, out: shapes of input and result.
    Gives the accesses of input, kernel and bias, and what computes a box of the result.
    """
    per, reads = out[1] // module.groups, whole[1] // module.groups
    channels = Groups(1, per, reads)
    taps = (None,) * (len(whole) - 1)
    rows: tuple[Access, ...]
    if transposed := isinstance(module, TRANSPOSED):
        rows = spans = _rows_of_transposed(module, whole, out)

        def on_part(box: Box, groups: int) -> LocalCall:
            first = tuple(low for low, _ in read_box(spans, box))
            return _transposed_call(module, box, first, groups)

    else:
        windows = _windows(module, whole)
        rows = tuple(Windows(dim, window) for dim, window in enumerate(windows, 2))

        def on_part(box: Box, groups: int) -> LocalCall:
            return _Convolution(windows, box, groups)

    kernel = channels if transposed else 1
    dims: tuple[Dims, ...] = (0, channels, *rows), (kernel, *taps), (1,)
    return dims, lambda box: _Computed(box, per, reads, transposed, on_part)


def _windows(module: Any, whole: Sequence[int]) -> tuple[Window, ...]:
    numbers = zip(
        whole[2:],
        module.kernel_size,
        module.stride,
        module.dilation,
        zeros_before(module, len(whole) - 2),
        strict=True,
    )
    return tuple(Window(*each) for each in numbers)


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


@dataclass(frozen=True)
class _Computed:
    """The own box of the result, from the channels of its groups and their kernel.

    per: channels of the result in a group. reads: channels that each of these reads.
    transposed: whether the kernel has the channels that are read first. on_part: what
    computes a box of some whole groups, or of a part of one.
    """

    own: Box
    per: int
    reads: int
    transposed: bool
    on_part: Callable[[Box, int], LocalCall]

    def __call__(
        self,
        shard: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One call of torch for whole groups, and for each part of one."""
        made = []
        for part in _parts(self.own[1], self.per, self.reads):
            box = self.own[0], (part.low, part.high), *self.own[2:]
            given = shard.narrow(1, part.first, part.channels)
            own_bias = None if bias is None else part.on(bias)
            kernel = self._kernel(weight, part)
            made.append(self.on_part(box, part.groups)(given, kernel, own_bias))
        return made[0] if len(made) == 1 else torch.cat(made, 1)

    def _kernel(self, weight: torch.Tensor, part: _Part) -> torch.Tensor:
        if not self.transposed:
            return part.on(weight)
        given = weight.narrow(0, part.first, part.channels)
        if part.high - part.low >= self.per:
            return given
        return given.narrow(1, part.low % self.per, part.high - part.low)


class _Part(NamedTuple):
    """Channels `low` to `high` of the result: of whole groups, or of a part of one.

    first, channels: where those that they read begin in the shard, and their number.
    start: the first channel of the box.
    """

    low: int
    high: int
    groups: int
    first: int
    channels: int
    start: int

    def on(self, values: torch.Tensor) -> torch.Tensor:
        """The channels of this part, of those of the box, the first dimension."""
        return values.narrow(0, self.low - self.start, self.high - self.low)


def _parts(rows: Interval, per: int, reads: int) -> Iterator[_Part]:
    """The channels of a box: the end of a group, whole groups, the begin of one."""
    start, high = rows
    low, begin = start, start // per * reads
    while low < high:
        whole = (high - low) // per if low % per == 0 else 0
        end = low + whole * per if whole else min(high, (low // per + 1) * per)
        groups = max(1, whole)
        first = low // per * reads - begin
        yield _Part(low, end, groups, first, groups * reads, start)
        low = end


def _rows_of_transposed(
    module: Any, whole: Sequence[int], out: Sequence[int]
) -> tuple[Spans, ...]:
    numbers = zip(
        range(2, len(out)),
        whole[2:],
        out[2:],
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        strict=True,
    )
    return tuple(rows_added(*each) for each in numbers)


def _transposed_call(
    module: Any, own: Box, first: tuple[int, ...], groups: int
) -> _Transposed:
    steps = tuple(module.stride), tuple(module.padding), tuple(module.dilation)
    return _Transposed(*steps, own, first, groups)


def _transposed(module: Any, source: Layout, out: Layout) -> Rule:
    rows = _rows_of_transposed(module, source.whole, out.whole)
    accesses: list[Access] = [Same(0), Whole(source.whole[1]), *rows]
    operand = pulled(source, accesses, out)
    assert isinstance(operand.reads, Layout)
    first = tuple(low for low, _ in operand.reads.mine[2:])
    return Rule(
        out, (operand,), _transposed_call(module, out.mine, first, module.groups)
    )


def rows_added(
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
        return made if bias is None else made + per_channel(bias, made)


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
    return zeros + per_channel(bias, zeros)
