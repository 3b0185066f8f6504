"""Copies of a network's model on "meta", of which step graphs are made."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.facts import tensors_within
from synth.runtime.tracing.left_values import (
    Left,
    LeftValue,
    part_of,
    put,
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
            if isinstance(values, PartitionedTensor) or not values.is_leaf:
                memo[id(values)] = LeftValue(each.label)
    for values in (*model.parameters(), *model.buffers()):
        if isinstance(values, PartitionedTensor):
            empty = torch.empty(values.shape, dtype=values.dtype, device="meta")
        else:
            empty = torch.empty_like(values, device="meta", requires_grad=False)
        if isinstance(values, nn.Parameter):
            empty = nn.Parameter(empty, values.requires_grad)
        memo[id(values)] = empty
    return copy.deepcopy(model, memo)


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


def follow_left(template: nn.Module, network: nn.Module, left: Iterable[Left]) -> None:
    """Let attributes that passes write be what a user has set.

    What passes have left themselves raises an error where a graph would read it.
    """
    for each in left:
        held, own = each.holder(network), each.holder(template)
        if each.appended or isinstance(each.key, slice) or None in (held, own):
            continue
        value = part_of(held, each.key)
        parts = [*tensors_within([value])]
        given = any(isinstance(part, LeftValue) for part in _pytree.tree_leaves(value))
        if given or not all(p.is_leaf and type(p) is torch.Tensor for p in parts):
            put(own, each, LeftValue(each.label))
        elif part_of(own, each.key) is not value:
            put(own, each, copy.deepcopy(value))


def device_of(model: nn.Module) -> torch.device:
    """Where the parameters of a model are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
