"""The parameters and buffers of the user's model in a network: partitioned tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from synth.runtime.comm.layout import replicated
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.steps.held import Held
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.unsupported import plain_copies


def partitioned_copy(
    model: nn.Module, homes: Mapping[str, Held], ranks: Ranks
) -> nn.Module:
    """A copy of a model with partitioned parameters and buffers."""
    memo: dict[int, Any] = plain_copies(model)
    for key, values in (*model.named_parameters(), *model.named_buffers()):
        place: Partition | None = Partition(replicated(values.shape, ranks))
        if key in homes:
            place = homes[key].partition
        trained = isinstance(values, nn.Parameter)
        if place is None or not (trained or is_trainable(values)):
            memo[id(values)] = values.detach().clone()
            continue
        own = place.cut(values.detach())
        # one rank sends nothing, so it keeps a memory format such as channels-last
        alone = ranks.size == 1
        layout = torch.preserve_format if alone else torch.contiguous_format
        local = own.clone(memory_format=layout)
        part = PartitionedTensor(local, place)
        memo[id(values)] = nn.Parameter(part, values.requires_grad) if trained else part
    return copy.deepcopy(model, memo)


def held_value(
    key: str, module: nn.Module, name: str, place: Partition | None
) -> torch.Tensor:
    """A parameter or buffer, partitioned as the steps use it, or plain.

    Raises `ValueError` for a tensor that was replaced by one of another partition.
    """
    values = _value(key, module, name)
    if place is None:
        return values
    if _is_computed_whole(values, module, name, place):
        values = PartitionedTensor.from_whole(values, place)
    if not isinstance(values, PartitionedTensor) or values._partition != place:
        found = getattr(values, "_partition", f"a plain {tuple(values.shape)}")
        raise ValueError(
            f"{key} was replaced: it is {found}, but the network holds {place};"
            " change it in place, as by copy_, or give functional_call what is computed"
            " from net.named_parameters()"
        )
    return values


def _value(key: str, module: nn.Module, name: str) -> torch.Tensor:
    """A parameter or buffer, as a parametrization of torch computes it.

    Raises `ValueError` for a parametrization that partitioned tensors do not allow.
    """
    try:
        values: torch.Tensor = getattr(module, name)
    except Exception as error:
        if not is_parametrized(module, name):
            raise
        raise ValueError(
            f"{key} has a parametrization that its ranks cannot compute from parts"
            f" ({error}); register it on the model before parallelize"
        ) from error
    return values


def _is_computed_whole(
    values: torch.Tensor, module: nn.Module, name: str, place: Partition
) -> bool:
    """Whether a parametrization computed a tensor from wholes, alike on all ranks."""
    return (
        not isinstance(values, PartitionedTensor)
        and values.shape == place.shape
        and is_parametrized(module, name)
    )
