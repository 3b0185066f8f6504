"""Which parameters and buffers a step uses, and which words of them each rank holds.

Steps have no tensors of their own. The network has them, as partitioned tensors under
the names of the user's model. It binds the local parts into the steps for a call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from synth.runtime.comm.gradient_buckets import Border
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor, ToLocal, own_words


class Held(NamedTuple):
    """A parameter or buffer that a module of a step uses.

    module, name: where its local part is bound.
    partition: who holds which words; None for a counter, which is whole on every rank.
    copies: the indices of the ranks that each get a part of its gradient; empty where
        each rank gets the whole gradient of its words.
    """

    module: nn.Module
    name: str
    partition: Partition | None
    copies: tuple[int, ...] = ()

    @property
    def is_buffer(self) -> bool:
        """Whether it is a buffer."""
        return self.name in self.module._buffers

    def bind(self, values: torch.Tensor | None) -> None:
        """Let the module use a local tensor, or none."""
        self.slots[self.name] = values

    @property
    def slots(self) -> dict[str, Any]:
        """Where the module finds it, by its name."""
        module = self.module
        return module._buffers if self.is_buffer else module._parameters


def held_by(module: Any) -> dict[str, Held]:
    """What a module of a step uses: name in the user's layer -> where it is bound."""
    found: dict[str, Held] = (
        module.held_tensors() if hasattr(module, "held_tensors") else {}
    )
    return found


def declare(module: nn.Module, name: str, like: torch.Tensor | None) -> None:
    """Make a place for a parameter or buffer that a network binds."""
    if isinstance(like, nn.Parameter):
        module.register_parameter(name, None)
    else:
        module.register_buffer(name, None)


def _gradient(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter, from that of its local part."""
    if isinstance(parameter, PartitionedTensor):
        return PartitionedTensor(part, parameter._partition)
    return part


BORDER = Border(own_words, _gradient)


def local_part(values: torch.Tensor) -> torch.Tensor:
    """The local part of a parameter; its gradient becomes that of the parameter."""
    if not isinstance(values, PartitionedTensor):
        return values
    if values.requires_grad and torch.is_grad_enabled():
        local: torch.Tensor = ToLocal.apply(values)  # type: ignore[no-untyped-call]
        return local
    return values._local
