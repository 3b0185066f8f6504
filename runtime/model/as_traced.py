"""The parameters and buffers of the user's model in a network: partitioned tensors.

Plain ones that a user put into the network are partitioned, too. A parameter stays the
same object, so that an optimizer that was given it trains it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from synth.runtime.comm.layout import replicated
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.transport import broadcast
from synth.runtime.layers.steps.held import Held
from synth.runtime.model.parameters import first_names
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.unsupported import plain_copies

REMEDY = "make the module on the device of the network, and put it in before it is used"


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
    if _is_computed_whole(values, place):
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


def _is_computed_whole(values: torch.Tensor, place: Partition) -> bool:
    """Whether a parametrization, or who calls `functional_call`, gives a whole tensor.

    A plain parameter or buffer of the network itself is made partitioned beforehand.
    """
    return type(values) is torch.Tensor and values.shape == place.shape


def require_adoptable(model: nn.Module, ranks: Ranks) -> None:
    """Raise `ValueError` for a tensor that cannot be partitioned where it is."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    devices = {v.device for _, v in tensors if isinstance(v, PartitionedTensor)}
    for name, values in tensors:
        if isinstance(values, PartitionedTensor):
            if values._partition.ranks.members != ranks.members:
                raise ValueError(
                    f"{name} lies on ranks {list(values._partition.ranks.members)},"
                    f" the network on {list(ranks.members)}; put a plain tensor in"
                )
            continue
        kind, remedy = "", REMEDY
        if type(values) not in (torch.Tensor, nn.Parameter):
            kind = f"is a {type(values).__name__}, which is not cut"
        elif values.is_meta or (devices and values.device not in devices):
            kind = f"is on {values.device}, not with the network"
        elif not values.is_leaf:
            kind = "is computed from other tensors"
            remedy = (
                "compute it in forward of the model, where functional_call may take it,"
                " or put in detach() of it"
            )
        elif isinstance(values, nn.Parameter) and _is_in_use(values):
            kind = "has hooks, or is in use elsewhere"
        if kind:
            raise ValueError(f"{name} was put into the network, but {kind}; {remedy}")


def _is_in_use(values: nn.Parameter) -> bool:
    """Whether others refer to a parameter in a way that torch cannot follow."""
    hooks = values._backward_hooks, values._post_accumulate_grad_hooks
    return bool(weakref.getweakrefs(values)) or any(hooks)


def adopt(model: nn.Module, homes: Mapping[str, Held], ranks: Ranks) -> None:
    """Let every rank hold its words of the tensors that a user put in.

    The first rank's values are taken. All ranks of all replicas call this.
    homes: key -> where it is held; others are whole on every rank.
    """
    everyone, first = ranks.everyone, first_names(model)
    for name, values in dict(model.named_parameters()).items():
        if not isinstance(values, PartitionedTensor):
            sent = values.detach().clone()  # gloo lets go of what it sent later
            broadcast(sent, everyone.members[0], everyone.group)
            with torch.no_grad():
                _swap(name, values, sent, _place(homes, first[name], values, ranks))
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is None or isinstance(buffer, PartitionedTensor):
                continue
            if id(buffer) not in made:
                name = next(n for n, b in model.named_buffers() if b is buffer)
                broadcast(buffer, everyone.members[0], everyone.group)
                place = _place(homes, first[name], buffer, ranks)
                made[id(buffer)] = buffer if place is None else _part(buffer, place)
            module._buffers[key] = made[id(buffer)]


def _place(
    homes: Mapping[str, Held], key: str, values: torch.Tensor, ranks: Ranks
) -> Partition | None:
    """Which words each rank holds; None for what is whole and not partitioned."""
    if key in homes:
        return homes[key].partition
    counts = not isinstance(values, nn.Parameter) and not values.is_floating_point()
    return None if counts else Partition(replicated(values.shape, ranks))


def _part(values: torch.Tensor, place: Partition) -> PartitionedTensor:
    own = place.cut(values.detach()).clone(memory_format=torch.contiguous_format)
    return PartitionedTensor(own, place)


def _swap(
    name: str, values: nn.Parameter, whole: torch.Tensor, place: Partition | None
) -> None:
    """Make a plain parameter a partitioned one; it stays the same object."""
    if place is None:  # whole numbers
        values.copy_(whole)
        return
    made = nn.Parameter(_part(whole, place), values.requires_grad)
    if values.grad is not None:
        made.grad = _part(values.grad, place)
        values.grad = None
    try:
        torch.utils.swap_tensors(values, made)  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # a graph of autograd has it
        raise ValueError(
            f"{name} was put into the network, but is in use elsewhere ({error});"
            f" {REMEDY}"
        ) from error
