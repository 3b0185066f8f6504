"""Resizing, with the rows that neighbours own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.compiled.constants import real_tensors
from synth.runtime.grid.boxes import Interval, shape
from synth.runtime.kernels.autocast import Operator
from synth.runtime.rules.access import Same, Spans
from synth.runtime.rules.rule import Rule, in_one_dtype, pulled

NEAREST = ("nearest", "nearest-exact")
LINEAR = ("linear", "bilinear", "trilinear")


class Resize:
    """Nearest or linear interpolation of the rows that an own box reads.

    positions: per spatial dimension, of each own row, counted from the first row that
    is read. rows: how many are read. mode: of torch's interpolation.

    Half precision is interpolated in float32 and rounded once. So are the gradients,
    which are sums over the output rows of an input row.
    """

    def __init__(
        self, positions: Sequence[torch.Tensor], rows: Sequence[int], mode: str
    ) -> None:
        self.positions, self.rows, self.mode = tuple(positions), tuple(rows), mode

    @cached_property
    def plain(self) -> bool:
        """Whether torch's own resizing of the rows that are read gives the own rows.

        It does for even factors, and is faster than an index for each dimension.
        """
        if self.mode in LINEAR:
            return False
        for rows, at in zip(self.rows, self.positions, strict=True):
            with real_tensors():
                numbers = torch.arange(rows, dtype=torch.float64).reshape(1, 1, -1)
                same = len(at) and torch.equal(self._by_torch(numbers, at)[0, 0], at)
            if not same:
                return False
        return True

    def _by_torch(self, shard: torch.Tensor, *at: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(shard, list(map(len, at)), mode=self.mode)

    def __call__(self, shard: torch.Tensor) -> torch.Tensor:
        """The own box of the result."""
        if self.mode in LINEAR or (shard.requires_grad and torch.is_grad_enabled()):
            shard = shard.to(sum_dtype(shard.dtype))
        if self.plain and shard.is_floating_point() and shard.numel():
            return self._by_torch(shard, *self.positions)
        for dim, at in enumerate(self.positions, 2):
            with real_tensors():
                low = at.floor()
                weight = (at - low).to(shard.device, shard.dtype)
                before = low.long().to(shard.device)
                after = (before + 1).clamp(max=max(0, shard.shape[dim] - 1))
                between = bool(weight.any())
            result = shard.index_select(dim, before)
            if between:
                each = [1] * shard.dim()
                each[dim] = -1
                more = shard.index_select(dim, after)
                # traced as what is computed: its backward pass changes 1 - it in place
                weight = shard.new_zeros(()) + weight.reshape(each)
                result = torch.lerp(result, more, weight)
            shard = result
        return shard


def resize(module: Any, source: Layout, out: Layout) -> Rule:
    """`torch.nn.Upsample`. out: see `scaled`, or as a plan has it.

    torch itself determines the positions of output rows: it resizes the row numbers.
    """
    scale, dims = module.scale_factor, len(out.whole) - 2
    scales = scale if isinstance(scale, tuple | list) else (scale,) * dims
    mode = "linear" if module.mode in LINEAR else module.mode
    corners = {"align_corners": module.align_corners} if mode == "linear" else {}
    positions = []
    for size, n, by in zip(source.whole[2:], out.whole[2:], scales, strict=True):
        numbers = torch.arange(size, dtype=torch.float64).reshape(1, 1, -1)
        target = {"size": n} if by is None else {"scale_factor": by}
        at = functional.interpolate(numbers, mode=mode, **target, **corners)
        positions.append(at.flatten())
    spans = (Spans(dim, _rows_read(at)) for dim, at in enumerate(positions, 2))
    operand = pulled(source, (Same(0), Same(1), *spans), out)
    assert isinstance(operand.reads, Layout)
    ends = zip(positions, out.mine[2:], operand.reads.mine[2:], strict=True)
    own = [at[low:high] - first for at, (low, high), (first, _) in ends]
    call = Resize(own, shape(operand.reads.mine)[2:], module.mode)
    operator = resize_operator(module.mode, dims)
    return Rule(out, (operand,), in_one_dtype("resizing", operator, call))


def _rows_read(positions: torch.Tensor) -> tuple[Interval, ...]:
    """The input rows between which each output row is interpolated."""
    lows, highs = positions.floor().long().tolist(), positions.ceil().long().tolist()
    return tuple((low, high + 1) for low, high in zip(lows, highs, strict=True))


@cache
def resize_operator(mode: str, dims: int) -> Operator:
    """torch's own interpolation of one word; the same object for the same mode."""

    def one(word: torch.Tensor) -> torch.Tensor:
        ones = [1] * dims
        return functional.interpolate(word.expand(1, 1, *ones), ones, mode=mode)

    return one
