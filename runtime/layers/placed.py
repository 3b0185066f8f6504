"""Steps of a network that lie where a plan of the whole network wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from synth.runtime.comm.redistribute import Count, Layout, move
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.planned_layer import Planned
from synth.runtime.layers.step import Step


class Place(NamedTuple):
    """What every rank owns before and after a step without weights."""

    before: tuple[Box, ...]
    after: tuple[Box, ...]


class Brought(Step):
    """A step whose input is first brought to where the step wants it."""

    def __init__(
        self, step: Step, source: Layout, wanted: Layout, count: Count
    ) -> None:
        super().__init__()
        self.step, self.source, self.wanted, self.count = step, source, wanted, count
        self.layout = step.layout

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the result."""
        share = move(share, self.source, self.wanted, self.count)
        result: torch.Tensor = self.step(share)
        return result


class OnMap(Planned):
    """A planned linear layer of a feature map: a convolution whose kernel covers it.

    What it gives is flat, and so is its weight in the user's model.
    """

    def __init__(
        self,
        layer: DistributedLayer,
        source: Layout,
        count: Count,
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        whole = tuple(layer.program.KER_SHAPE)
        super().__init__(layer, source, count, {**shapes, "weight": whole})
        self.layout = Layout(
            self.inner.whole[:2], tuple(box[:2] for box in self.inner.boxes)
        )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of the features."""
        return super().forward(share).reshape(shape(self.layout.mine))

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What torch's own linear layer would save, on every rank."""
        state = super().full_state_dict()
        return {**state, "weight": state["weight"].flatten(1)}

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own shares of what torch's own linear layer saved."""
        weight = state["weight"].reshape(tuple(self.shapes["weight"]))
        super().load_full_state_dict({**state, "weight": weight})
