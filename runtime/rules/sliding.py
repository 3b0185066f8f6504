"""Windows that slide over rows, each as a row of its own: `unfold`, and `fold` back.

`torch.nn.functional.unfold` puts the words of each window along the channels, and the
windows, row by row, along one dimension. `torch.Tensor.unfold` puts them along a new
dimension, for the windows of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Window, zeros_around
from synth.runtime.rules.access import Access, Groups, Spans, Windows
from synth.runtime.rules.convolution import rows_added
from synth.runtime.rules.products import Dims, accesses, best_layout
from synth.runtime.rules.rule import LocalCall, Rule, pulled, where_words


class Sliding(NamedTuple):
    """The windows of an `unfold` of maps, or of a `fold`, along height and width.

    extents: of the map.
    """

    extents: tuple[int, int]
    kernel: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]

    @property
    def taps(self) -> int:
        """Words of a window in a channel."""
        return math.prod(self.kernel)

    @property
    def windows(self) -> tuple[Window, ...]:
        """Along height and width."""
        numbers = self.extents, self.kernel, self.stride, self.dilation, self.padding
        return tuple(Window(*each) for each in zip(*numbers, strict=True))

    @property
    def counts(self) -> tuple[int, int]:
        """Windows along height and width."""
        high, wide = (
            (w.size + 2 * w.padding - w.dilation * (w.kernel - 1) - 1) // w.stride + 1
            for w in self.windows
        )
        return high, wide

    def unfolded(self, source: Layout) -> Rule:
        """The rule of `unfold` on (b, c, h, w). Ranks have whole rows of windows."""
        high, wide = self.counts
        rows, columns = self.windows
        dims = 0, 1, Windows(2, rows), Windows(3, columns)
        windows = _layout((*source.whole[:2], high, wide), source, dims)
        taps = self.taps
        out = source.with_boxes(
            (source.whole[0], source.whole[1] * taps, high * wide),
            ((b, _times(c, taps), _times(r, wide)) for b, c, r, _ in windows.boxes),
        )
        before, after = zeros_around(windows.mine[2], rows)
        side = self.padding[1]

        def local(shard: torch.Tensor) -> torch.Tensor:
            given = functional.pad(shard, (side, side, before, after))
            return functional.unfold(given, self.kernel, self.dilation, 0, self.stride)

        return _rule(source, dims, windows, out, local)

    def folded(self, source: Layout) -> Rule:
        """The rule of `fold` to (b, c, h, w), of whole rows of words."""
        (size, _), (high, wide) = self.extents, self.counts
        numbers = self.kernel, self.stride, self.padding, self.dilation
        kernel, stride, padding, dilation = (each[0] for each in numbers)
        added = rows_added(2, high, size, kernel, stride, padding, dilation).rows
        rows = Spans(2, tuple((low * wide, end * wide) for low, end in added))
        dims = 0, Groups(1, 1, self.taps), rows
        shape = (source.whole[0], source.whole[1] // self.taps, *self.extents)
        out = _layout(shape, source, dims)
        begin, end = out.mine[2]
        read = added[begin:end]
        first, last = (read[0][0], read[-1][1]) if read else (0, 0)
        made = max(0, last - first - 1) * stride + dilation * (kernel - 1) + 1
        start = begin + padding - first * stride

        def local(shard: torch.Tensor) -> torch.Tensor:
            if first == last:  # no window has these rows
                zeros = shard.new_zeros(
                    *(len(shard), shard.shape[1] // self.taps), end - begin, shape[3]
                )
                return zeros + 0 * shard.sum()
            whole = functional.fold(
                *(shard, (made, shape[3]), self.kernel, self.dilation),
                *((0, self.padding[1]), self.stride),
            )
            edges = (0, 0, -start, start + end - begin - made)
            return functional.pad(whole, edges)

        return _rule(source, dims, out, out, local)


class Along(NamedTuple):
    """`torch.Tensor.unfold` along one dimension."""

    dim: int
    size: int
    step: int

    def rule(self, source: Layout) -> Rule:
        """The rule of the call. Windows have a dimension of their own, the last."""
        whole = list(source.whole)
        window = Window(whole[self.dim], self.size, self.step, 1, 0)
        dims: list[int | Access | None] = [*range(len(whole))]
        dims[self.dim] = Windows(self.dim, window)
        whole[self.dim] = (whole[self.dim] - self.size) // self.step + 1
        out = _layout((*whole, self.size), source, tuple(dims))
        return _rule(source, tuple(dims), out, out, lambda shard: shard.unfold(*self))


def _layout(shape: Sequence[int], source: Layout, dims: Dims) -> Layout:
    """That of the windows, or of the map: cut along all dimensions but the last."""
    return best_layout(shape, [(source, dims)], range(len(shape) - 1))


def _rule(
    source: Layout, dims: Dims, read: Layout, out: Layout, call: LocalCall
) -> Rule:
    """read: of which boxes follow what is read."""
    operand = pulled(source, accesses(source.whole, dims), read)
    return Rule(out, (operand,), where_words(call, out))


def _times(rows: tuple[int, int], number: int) -> tuple[int, int]:
    return rows[0] * number, rows[1] * number
