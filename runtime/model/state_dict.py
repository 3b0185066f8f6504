"""The state of a network: whole values, and checks before anything is loaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from synth.runtime.tensor.partitioned import PartitionedTensor

COUNT = "num_batches_tracked"  # which batch norms fill in where no version is saved


class StateError(ValueError, RuntimeError):
    """A state that does not fit a model. torch raises `RuntimeError` for it."""


def wholes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Key -> the whole value, on every rank."""
    whole = {
        key: value.full_tensor()
        if isinstance(value, PartitionedTensor)
        else value.clone()
        if isinstance(value, torch.Tensor)
        else value
        for key, value in state.items()
    }
    return _like(state, whole)


def _like(state: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Values with the versions of modules that a state has, by which they load it."""
    made = OrderedDict(values)
    if hasattr(state, "_metadata"):
        made._metadata = state._metadata  # type: ignore[attr-defined]
    return made


def takes_other_keys(model: nn.Module) -> bool:
    """Whether a module saves or loads other keys than those of its tensors.

    By hooks of its state, or by what its class does with one.
    """
    kind = type(model)
    whole = kind.state_dict, kind.load_state_dict
    return whole != (nn.Module.state_dict, nn.Module.load_state_dict) or any(
        each._state_dict_hooks
        or each._load_state_dict_pre_hooks
        or not type(each)._load_from_state_dict.__module__.startswith("torch.nn.")
        for each in model.modules()
    )


def check_state(
    state: Mapping[str, Any], own: Mapping[str, Any], strict: bool = True
) -> dict[str, Any]:
    """The state to load, with DTensors as partitioned tensors.

    Raises `StateError` with the first key or shape that differs from the model's, or
    for values that cannot be copied.
    """
    if not isinstance(state, Mapping):
        raise StateError(
            f"the state is a {type(state).__name__}; give a dict of tensors by their"
            " names in the model"
        )
    for key, value in own.items():
        if not isinstance(value, torch.Tensor):
            continue
        mine = tuple(value.shape)
        if key not in state:
            old = not hasattr(state, "_metadata") and key.endswith(COUNT)
            if not strict or old:
                continue
            have = next((each for each in state if each not in own), None)
            told = "" if have is None else f" but has {have}"
            raise StateError(
                f"the state is not of this model: it lacks {key} of shape {mine}{told};"
                " load what the same model saved"
            )
        given = state[key]
        if not isinstance(given, torch.Tensor):
            raise StateError(
                f"the state is not of this model: its {key} is a"
                f" {type(given).__name__}, the model's a tensor of shape {mine};"
                " load what the same model saved"
            )
        if tuple(given.shape) != mine:
            raise StateError(
                f"the state is not of this model: its {key} has the shape"
                f" {tuple(given.shape)}, the model's {mine};"
                " load what the same model saved"
            )
        kind = _not_copied(given, value)
        if kind:
            raise StateError(
                f"{key} of the state is {kind}, which is not copied into the model's"
                f" {value.dtype}; convert it first"
            )
    extra = next((key for key in state if key not in own), None)
    if extra is not None and strict:
        raise StateError(
            f"the state is not of this model: it has {extra}, which the model lacks;"
            " load what the same model saved"
        )
    made = {key: _partitioned(key, value, own.get(key)) for key, value in state.items()}
    return _like(state, made)


def _not_copied(given: torch.Tensor, own: torch.Tensor) -> str:
    """What is wrong with values that would be lost or not read, or ""."""
    if given.is_meta:
        return "on the device meta, without values"
    if given.layout != torch.strided:
        return f"of the layout {given.layout}"
    if given.is_quantized:
        return f"of the dtype {given.dtype}"
    if given.is_complex() and not own.is_complex():
        return f"of the dtype {given.dtype}"
    return ""


def _partitioned(key: str, value: Any, own: Any) -> Any:
    """A value that can be copied. Raises `StateError` where it lies on other ranks."""
    if isinstance(value, DTensor):  # without gradients, as states are
        value = PartitionedTensor.from_dtensor(value)
    if isinstance(value, PartitionedTensor) and isinstance(own, PartitionedTensor):
        theirs, mine = value.partition.ranks.members, own.partition.ranks.members
        if theirs != mine:
            raise StateError(
                f"{key} of the state lies on ranks {list(theirs)}, the model's on"
                f" {list(mine)}; load with torch.distributed.checkpoint, or"
                " full_state_dict() of the other network"
            )
    return value
