"""The step of a scan along a dimension that ranks cut; see `rules.scans`."""

from __future__ import annotations

import torch

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.redistribute import Count
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.layers.steps.step import Step
from synth.runtime.rules.scans import CutScan


class Scan(Step):
    """Scans the own rows, and joins what the rows before them add up to.

    operator: of torch, called with one word; it says the dtype under autocast.
    """

    def __init__(self, scan: CutScan, operator: Operator, count: Count) -> None:
        super().__init__()
        self.scan, self.layout = scan, scan.layout
        self.operator, self.count = operator, count

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The own rows of the result."""
        dtype = operator_dtype(self.scan.name, self.operator, shard)
        with no_autocast(shard.device):
            return self.scan(shard, dtype, self.count)

    def exchanges(self) -> list[Exchange]:
        """A word of every line of rows."""
        return self.scan.exchanges()
