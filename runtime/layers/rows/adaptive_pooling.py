"""Adaptive pooling whose windows have several sizes, with the rows of neighbours.

Output row `i` of `n` reads the input rows from ⌊i·size/n⌋ to ⌈(i+1)·size/n⌉, as torch
has it. Windows are boxes, so means and maxima are taken along one dimension at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import Interval, shape, volume
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.layers.steps.step import Step, scaled_boxes


class UnevenPool(Step):
    """Maximum or average over windows that follow from the extents of the result.

    operator: torch's own pooling of one word, which says the dtype under autocast.
    """

    def __init__(
        self,
        source: Layout,
        extents: Sequence[int],
        count: Count,
        average: bool,
        operator: Operator,
    ) -> None:
        super().__init__()
        self.source, self.count, self.average = source, count, average
        self.operator = operator
        boxes = scaled_boxes(source, extents)
        self.layout = source.with_boxes((*source.whole[:2], *extents), boxes)
        pairs = list(zip(source.whole[2:], extents, strict=True))
        wanted = []
        for box in boxes:
            rows = zip(box[2:], pairs, strict=True)
            wanted.append((*box[:2], *(_rows(each, *pair) for each, pair in rows)))
        self.wanted = source.with_boxes(source.whole, wanted)
        self.windows = [
            [_rows((row, row + 1), *pair) for row in range(*each)]
            for each, pair in zip(self.layout.mine[2:], pairs, strict=True)
        ]

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        dtype = operator_dtype("pooling", self.operator, shard)
        shard = redistribute(shard, self.source, self.wanted, self.count)
        mine = self.layout.mine
        if volume(mine) == 0:
            return (shard.new_zeros(shape(mine)) + shard.sum() * 0).to(dtype)
        with no_autocast(shard.device):
            shard = shard.to(sum_dtype(dtype)) if self.average else shard.to(dtype)
            # the last dimension first: of equal maxima torch takes the first
            for dim, windows in reversed(list(enumerate(self.windows, 2))):
                first = self.wanted.mine[dim][0]
                shard = torch.stack(
                    [
                        self._pooled(shard.narrow(dim, low - first, high - low), dim)
                        for low, high in windows
                    ],
                    dim,
                )
            return shard.to(dtype)

    def exchanges(self) -> list[Exchange]:
        """The rows of neighbours."""
        return moved(self.source, self.wanted)

    def _pooled(self, rows: torch.Tensor, dim: int) -> torch.Tensor:
        return rows.mean(dim) if self.average else rows.max(dim).values


def _rows(rows: Interval, size: int, extent: int) -> Interval:
    """The input rows that some output rows read."""
    low, high = rows
    return (low * size // extent, -(-high * size // extent)) if high > low else (0, 0)
