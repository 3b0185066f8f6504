"""Linear layers of which every rank computes all rows, which it gathers once.

Keys and values of attention are read whole by every rank. Where both come from one
value, gathering that moves half the words, or less. Each rank then computes them for
all rows of its samples. This is for inference: each rank holds the whole weights.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.kernels.autocast import lowered
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import Step

ROWS = 1  # the dimension of rows: (samples, rows, channels)


class SharedGather:
    """All rows of a value, gathered once in a pass for some readers.

    source: (samples, rows, channels), with whole channels on every rank.
    """

    def __init__(self, source: Layout, readers: int, count: Count) -> None:
        self.source, self.readers, self.count = source, readers, count
        self.layout = all_rows(source, source.whole[-1])
        self.given: torch.Tensor | None = None
        self.gathered: torch.Tensor | None = None
        self.left = 0

    def __call__(self, shard: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks; the last reader of a shard lets them go."""
        rows = self.gathered
        if rows is None or self.given is not shard:
            rows = redistribute(lowered(shard), self.source, self.layout, self.count)
            self.given, self.gathered, self.left = shard, rows, self.readers
        self.left -= 1
        if not self.left:
            self.given = self.gathered = None
        return rows

    def exchanges(self) -> list[Exchange]:
        """The rows that a rank does not have."""
        return moved(self.source, self.layout)


class LinearOfAllRows(Step):
    """`torch.nn.linear` of all rows of the own samples.

    module: the whole weight, and the bias if there is one. first: of the readers, whose
        call the words that are gathered count for.
    """

    def __init__(
        self, gather: SharedGather, module: ReplicatedParams, first: bool
    ) -> None:
        super().__init__()
        self.gather, self.module, self.first = gather, module, first
        self.layout = all_rows(gather.source, module.layouts["weight"].whole[0])

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The own samples; all ranks that have them compute the same."""
        return functional.linear(self.gather(shard), *self.module.all())

    def exchanges(self) -> list[Exchange]:
        """The rows that are gathered, where no other reader has them."""
        return self.gather.exchanges() if self.first else []


def all_rows(source: Layout, channels: int) -> Layout:
    """Every rank has all rows of its samples, with so many channels."""
    whole = (*source.whole[:-1], channels)
    rows = (0, source.whole[ROWS])
    return source.with_boxes(whole, ((b[0], rows, (0, channels)) for b in source.boxes))
