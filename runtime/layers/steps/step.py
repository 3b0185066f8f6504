"""Steps of a network on shards.

Each step is created for the layouts of its inputs and has the layout of its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.layout import Layout
from synth.runtime.kernels.autocast import Region, entered
from synth.runtime.layers.steps.held import Held, held_by


class Step(nn.Module):
    """A part of a network: takes shards, returns a shard of `layout`.

    autocast: the regions of the model's own in which the call stands.
    trains: mode of the module that makes the call -> whether the step trains then,
        where the two are not the same.
    settings: attributes of the user's module that it may change without another plan.
        `module` of the step has them, too.
    """

    layout: Layout
    autocast: tuple[Region, ...] = ()
    trains: Mapping[bool, bool] = MappingProxyType({})
    settings: tuple[str, ...] = ()

    def __call__(self, *shards: torch.Tensor) -> torch.Tensor:
        """`forward` with its hooks, inside of the model's autocast regions."""
        call: Any = super().__call__
        if not self.autocast:
            result: torch.Tensor = call(*shards)
            return result
        with entered(self.autocast):
            return call(*shards)  # type: ignore[no-any-return]

    def held_tensors(self) -> dict[str, Held]:
        """What the step uses: name in the user's layer -> where it is bound."""
        return held_by(getattr(self, "module", None))

    @property
    def changes_buffers(self) -> bool:
        """Whether the step may change the buffers that it uses."""
        return self.training

    def reads_back(self, name: str, trained: bool) -> bool:
        """Whether the backward pass reads a parameter or buffer, by its name here.

        trained: whether an input has a gradient. A bias is only added.
        """
        return name != "bias"

    def reads_inputs(self, trained: bool) -> bool:
        """Whether the backward pass reads the inputs.

        trained: whether the weight has a gradient.
        """
        return True

    def exchanges(self) -> list[Exchange]:
        """What ranks receive in a call, in the mode of the step."""
        module: Any = getattr(self, "module", None)
        return module.exchanges() if hasattr(module, "exchanges") else []


class OnShards(Step):
    """A module that takes and returns shards of one layout."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.module, self.layout = module, layout

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        result: torch.Tensor = self.module(shard)
        return result
