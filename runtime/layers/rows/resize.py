"""Resizing of shards, with the rows that neighbours own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.layers.steps.step import Step, scaled_boxes

NEAREST = ("nearest", "nearest-exact")
LINEAR = ("linear", "bilinear", "trilinear")


class Resize(Step):
    """Nearest or linear interpolation.

    positions: per spatial dimension, the input position of each output row.
    mode: of torch's interpolation.

    Half precision is interpolated in float32 and rounded once. So are the gradients,
    which are sums over the output rows of an input row.
    """

    def __init__(
        self,
        source: Layout,
        positions: Sequence[torch.Tensor],
        count: Count,
        mode: str,
    ) -> None:
        super().__init__()
        self.mode, self.linear = mode, mode in LINEAR
        self.operator = resize_operator(mode, len(positions))
        self.source, self.positions, self.count = source, tuple(positions), count
        self.set_boxes(scaled_boxes(source, [len(each) for each in positions]))

    def set_boxes(self, boxes: Sequence[Box]) -> None:
        """Set each rank's box of the output; samples and channels as in the input."""
        extents = [len(each) for each in self.positions]
        self.layout = self.source.with_boxes((*self.source.whole[:2], *extents), boxes)
        wanted = (
            (*box[:2], *map(_rows_read, self.positions, box[2:])) for box in boxes
        )
        self.wanted = self.source.with_boxes(self.source.whole, wanted)
        ends = zip(self.layout.mine[2:], self.wanted.mine[2:], strict=True)
        self.shard_positions = [  # of own output rows, from the first fetched input row
            each[low:high] - first
            for each, ((low, high), (first, _)) in zip(
                self.positions, ends, strict=True
            )
        ]
        self.plain: bool | None = None  # not known before the first call

    def _is_plain(self) -> bool:
        """Whether torch's own resizing of the fetched rows gives the own rows.

        It does for even factors, and is faster than an index for each dimension.
        """
        if self.linear:
            return False
        for rows, at in zip(
            shape(self.wanted.mine)[2:], self.shard_positions, strict=True
        ):
            numbers = torch.arange(rows, dtype=torch.float64).reshape(1, 1, -1)
            if not len(at) or not torch.equal(self._by_torch(numbers, at)[0, 0], at):
                return False
        return True

    def _by_torch(self, shard: torch.Tensor, *at: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(shard, list(map(len, at)), mode=self.mode)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        dtype = operator_dtype("resizing", self.operator, shard)
        shard = redistribute(shard, self.source, self.wanted, self.count)
        if self.linear or (shard.requires_grad and torch.is_grad_enabled()):
            shard = shard.to(sum_dtype(shard.dtype))
        with no_autocast(shard.device):
            return self._resized(shard).to(dtype)

    def exchanges(self) -> list[Exchange]:
        """The rows of neighbours."""
        return moved(self.source, self.wanted)

    def _resized(self, shard: torch.Tensor) -> torch.Tensor:
        if self.plain is None:
            self.plain = self._is_plain()
        if self.plain and shard.is_floating_point() and shard.numel():
            return self._by_torch(shard, *self.shard_positions)
        for dim, at in enumerate(self.shard_positions, 2):
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


def _rows_read(positions: torch.Tensor, interval: tuple[int, int]) -> tuple[int, int]:
    """The input rows that the output rows of an interval interpolate between."""
    at = positions[slice(*interval)]
    if not len(at):
        return 0, 0
    return int(at[0].floor()), int(at[-1].ceil()) + 1


def resize_step(
    module: Any, source: Layout, out: tuple[int, ...], count: Count
) -> Step | None:
    """The step for `torch.nn.Upsample`; None if it cannot be cut.

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
    positions = []
    for size, n, by in zip(source.whole[2:], out[2:], scales, strict=True):
        numbers = torch.arange(size, dtype=torch.float64).reshape(1, 1, -1)
        target = {"size": n} if by is None else {"scale_factor": by}
        at = functional.interpolate(numbers, mode=mode, **target, **corners)
        positions.append(at.flatten())
    return Resize(source, positions, count, module.mode)


@cache
def resize_operator(mode: str, dims: int) -> Operator:
    """torch's own interpolation of one word; the same object for the same mode."""

    def one(word: torch.Tensor) -> torch.Tensor:
        ones = [1] * dims
        return functional.interpolate(word.expand(1, 1, *ones), ones, mode=mode)

    return one
