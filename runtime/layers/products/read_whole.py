"""Layers of which every rank computes all rows, from rows that it gathers once.

Keys and values of attention are read whole by every rank. Where both come from one
value, gathering that moves half the words, or less. Each rank then computes what it
lacks of them for its samples. This is for inference: each rank holds the whole weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import outside, shape, volume, with_interval, within
from synth.runtime.kernels.autocast import lowered
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.step import Step

CALLS: dict[int, Any] = {  # by the dimensions of the weight
    2: functional.linear,
    3: functional.conv1d,
    4: functional.conv2d,
    5: functional.conv3d,
}


class GatheredRows(Step):
    """All rows of the own samples of a value, which some layers read."""

    def __init__(self, source: Layout, layout: Layout, count: Count) -> None:
        super().__init__()
        self.source, self.layout, self.count = source, layout, count

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, as autocast casts them for a layer."""
        return redistribute(lowered(shard), self.source, self.layout, self.count)

    def exchanges(self) -> list[Exchange]:
        """The rows that a rank does not have."""
        return moved(self.source, self.layout)


class LayerOfAllRows(Step):
    """What a linear layer, or a convolution with a kernel of one, makes of all rows.

    weight: the shape of it. held: where the layer itself has its weight and bias, whole
    on every rank. made: where its result lies. These rows are not computed again.
    channels: those that are read of the result. Others are zeros in the rows of others.
    """

    def __init__(
        self,
        weight: Sequence[int],
        held: Mapping[str, Held],
        made: Layout,
        channels: Sequence[int],
    ) -> None:
        super().__init__()
        self.weight, self.held, self.own = tuple(weight[1:]), held, made.mine
        self.run, self.place = CALLS[len(weight)], channel_dim(weight)
        self.layout = all_rows(made, self.place)
        self.lacked = outside(self.layout.mine, self.own)
        self.picked = _picked(channels)
        self.module = nn.Module()
        for name in ("weight", "bias"):
            self.module.register_parameter(name, None)

    def forward(self, rows: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """The own samples; all ranks that have them compute the same."""
        frame, picked = self.layout.mine, self.picked
        made = own.new_zeros(shape(frame))
        if own.numel():
            made[within(self.own, frame)] = own
        weight: Any = self.module.weight
        bias: Any = self.module.bias
        weight = weight[picked].reshape(-1, *self.weight)
        bias = None if bias is None else bias[picked]
        for box in self.lacked:
            where: list[Any] = list(within(box, frame))
            where[self.place] = slice(None)
            values = self.run(rows[tuple(where)], weight, bias)
            where[self.place] = picked
            made[tuple(where)] = values
        return made

    def held_tensors(self) -> dict[str, Held]:
        """Weight and bias, as the layer itself has them."""
        pairs = self.held.items()
        return {name: each._replace(module=self.module) for name, each in pairs}


def channel_dim(weight: Sequence[int]) -> int:
    """The dimension of channels of a layer's input and output, by its weight."""
    return -1 if len(weight) == 2 else 1


def all_rows(made: Layout, place: int, channels: int = 0) -> Layout:
    """Every rank has all rows of its samples.

    place: the dimension of channels. channels: their number where it is another one.
    """
    whole = list(made.whole)
    whole[place] = channels or whole[place]
    rows, nothing = tuple((0, extent) for extent in whole), ((0, 0),) * len(whole)
    boxes = (with_interval(rows, 0, b[0]) if volume(b) else nothing for b in made.boxes)
    return made.with_boxes(whole, boxes)


def _picked(channels: Sequence[int]) -> slice | list[int]:
    """What picks channels: a slice where they follow each other."""
    low, high = channels[0], channels[-1] + 1
    return slice(low, high) if high - low == len(channels) else [*channels]
