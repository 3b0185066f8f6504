"""Calls that act along some dimensions, on boxes that are whole along these."""

from __future__ import annotations

from collections.abc import Callable

import torch

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import shape
from synth.runtime.layers.steps.step import Step
from synth.runtime.tensor.local_forms import LocalForm, fitting, regrouped


class Local(Step):
    """A function of the own box, whose input is cut anew where boxes do not fit it.

    call: takes the box of the input and the shape of the own box of the result.
    """

    def __init__(
        self,
        call: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor],
        source: Layout,
        form: LocalForm,
        count: Count,
    ) -> None:
        super().__init__()
        self.call, self.source, self.count = call, source, count
        self.wanted = fitting(source, form)
        layout = regrouped(self.wanted, form)
        assert layout is not None, (source, form)
        self.layout = layout

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        shard = redistribute(shard, self.source, self.wanted, self.count)
        mine = shape(self.layout.mine)
        if not shard.numel():
            return (shard.new_zeros(mine) + shard.sum() * 0).to(shard.dtype)
        return self.call(shard, mine)

    def exchanges(self) -> list[Exchange]:
        """The input, where it is cut anew."""
        return moved(self.source, self.wanted)
