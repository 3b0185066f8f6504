"""Gathers the state of a whole model from its steps, and loads it into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

Entries = Mapping[str, tuple[str, str]]  # key of the model's state -> step, its key
Saved = dict[str, Any]  # key -> shape, or the value where no step has it


def whole_state(
    steps: nn.ModuleDict, entries: Entries, saved: Saved
) -> dict[str, torch.Tensor]:
    """Key -> values in the order of the model, the whole state on every rank."""
    held: dict[str, Any] = {}
    for step in dict.fromkeys(step for step, _ in entries.values()):
        of: Any = steps[step]
        held[step] = of.full_state_dict()
    state = {}
    for key, value in saved.items():
        step, entry = entries.get(key, ("", ""))
        state[key] = held[step][entry] if step else value
    return state


def load_whole(
    state: Mapping[str, torch.Tensor],
    steps: nn.ModuleDict,
    entries: Entries,
    saved: Saved,
) -> None:
    """Load its part into every step.

    Raises `ValueError` for the state of another model.
    """
    check_state(state, saved)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for key, values in state.items():
        if key in entries:
            step, entry = entries[key]
            parts.setdefault(step, {})[entry] = values
        else:
            saved[key] = values.detach().clone()
    for step, part in parts.items():
        of: Any = steps[step]
        of.load_full_state_dict(part)


def check_state(state: Mapping[str, torch.Tensor], saved: Saved) -> None:
    """Raise `ValueError` with the first key that differs from the model's."""
    for key, value in saved.items():
        mine = _shape(value)
        if key not in state:
            have = next((each for each in state if each not in saved), None)
            told = "" if have is None else f" but has {have}"
            raise ValueError(
                f"the state is not of this model: it lacks {key} of shape {mine}{told};"
                " load what the same model saved"
            )
        given = state[key]
        if isinstance(value, torch.Tensor | torch.Size) and not isinstance(
            given, torch.Tensor
        ):
            raise ValueError(
                f"the state is not of this model: its {key} is a"
                f" {type(given).__name__}, the model's a tensor of shape {mine};"
                " load what the same model saved"
            )
        if tuple(given.shape) != mine:
            raise ValueError(
                f"the state is not of this model: its {key} has the shape"
                f" {tuple(state[key].shape)}, the model's {mine};"
                " load what the same model saved"
            )
    extra = next((key for key in state if key not in saved), None)
    if extra is not None:
        raise ValueError(
            f"the state is not of this model: it has {extra}, which the model lacks;"
            " load what the same model saved"
        )


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape if isinstance(value, torch.Tensor) else value)
