"""Steps of a network that lie where a plan of the whole network wants them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn

from runtime.blocks import Box, shape
from runtime.layout import Count, Layout, move
from runtime.module import DistributedLayer
from runtime.steps import Planned, Step


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


class Head(nn.Module):
    """A linear layer of a feature map: a convolution whose kernel covers the map."""

    def __init__(self, layer: DistributedLayer) -> None:
        super().__init__()
        self.layer, self.program = layer, layer.program
        self.kernel_dims, self.at = layer.kernel_dims, layer.at

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of Out, from its share of the map."""
        result: torch.Tensor = self.layer(share)
        return result

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What torch's own linear layer would save, on every rank."""
        state = self.layer.full_state_dict()
        return {**state, "weight": state["weight"].flatten(1)}

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own shares of what torch's own linear layer saved."""
        whole = tuple(self.program.KER_SHAPE)
        weight = state.get("weight")
        if weight is not None and weight.shape == (whole[0], math.prod(whole[1:])):
            state = {**state, "weight": weight.reshape(whole)}
        self.layer.load_full_state_dict(state)


class OnMap(Planned):
    """A planned linear layer of a feature map; what it gives is flat."""

    def __init__(self, layer: DistributedLayer, source: Layout, count: Count) -> None:
        head: Any = Head(layer)
        super().__init__(head, source, count)
        self.layout = Layout(
            self.inner.whole[:2], tuple(box[:2] for box in self.inner.boxes)
        )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of the features."""
        return super().forward(share).reshape(shape(self.layout.mine))
