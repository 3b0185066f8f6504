"""Copies of a network's model on "meta", of which step graphs are made."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.left_values import (
    Left,
    LeftValue,
    leave,
    part_of,
    tensors_within,
)
from synth.runtime.tracing.unsupported import plain_copies


def emptied(model: nn.Module, left: Iterable[Left]) -> nn.Module:
    """A copy of a model on "meta", without values.

    left: by passes, in attributes. A graph of the copy has none of their tensors.
    """
    memo: dict[int, Any] = plain_copies(model)
    given = [each for each in left if each.given is None or each.places]
    for each in given:
        held = each.holder(model)
        value = held if each.appended else part_of(held, each.key)
        for values in tensors_within(value):  # of a list, not those of before
            made = isinstance(values, PartitionedTensor) or not values.is_leaf
            if made or not each.appended:
                memo[id(values)] = LeftValue(each.label)
    for values in (*model.parameters(), *model.buffers()):
        if isinstance(values, PartitionedTensor):
            empty = torch.empty(values.shape, dtype=values.dtype, device="meta")
        else:
            empty = torch.empty_like(values, device="meta", requires_grad=False)
        if isinstance(values, nn.Parameter):
            empty = nn.Parameter(empty, values.requires_grad)
        memo[id(values)] = empty
    empty_model = copy.deepcopy(model, memo)
    leave(empty_model, given, None)
    return empty_model


def follow_network(template: nn.Module, network: nn.Module) -> None:
    """Let the template train, and need gradients, as the network now does."""
    modules = dict(network.named_modules())
    for name, module in template.named_modules():
        if name in modules:
            module.training = modules[name].training
    trained = dict(network.named_parameters())
    for name, values in template.named_parameters():
        if name in trained:
            values.requires_grad_(trained[name].requires_grad)
            if values.dtype != trained[name].dtype:
                values.data = values.data.to(trained[name].dtype)
    held = dict(network.named_buffers())
    for name, buffer in template.named_buffers():
        if name in held and buffer.dtype != held[name].dtype:
            buffer.data = buffer.data.to(held[name].dtype)


def device_of(model: nn.Module) -> torch.device:
    """Where the parameters of a model are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
