"""All ranks of a network must be given the same model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from synth.runtime.grid.ranks import Ranks

Facts = dict[str, str]  # what is compared -> how it is on one rank


def require_same_model(model: nn.Module, input: Sequence[int], ranks: Ranks) -> None:
    """Raise `ValueError` on every rank if one has another model or another input shape.

    Compared are the classes and settings of all modules, and names, shapes and types of
    parameters and buffers. Messages of different sizes would end the process unnamed.
    """
    facts = facts_of(model, input)
    digest = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()
    digests = gathered(digest, ranks)
    if len(set(digests)) == 1:
        return
    first = ranks.from_first(facts)
    told = gathered(difference(facts, first), ranks)
    index = next(i for i, text in enumerate(told) if text)
    raise ValueError(
        f"rank {ranks.members[index]} has another model than rank {ranks.members[0]}:"
        f" {told[index]}; give all ranks the same model"
    )


def facts_of(model: nn.Module, input: Sequence[int]) -> Facts:
    """What all ranks must have alike."""
    facts = {"the input": str(tuple(input))}
    for name, module in model.named_modules():
        kind, settings = type(module).__name__, module.extra_repr()
        facts[f"module {name}"] = f"{kind}({settings})"
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        facts[name] = f"{tuple(values.shape)} of {values.dtype}"
    return facts


def difference(mine: Facts, first: Facts) -> str:
    """The first fact that differs, in words; "" if there is none."""
    for name in (*mine, *first):
        if mine.get(name) != first.get(name):
            there, here = first.get(name, "missing"), mine.get(name, "missing")
            return f"{name} is {here}, there it is {there}"
    return ""


def gathered(value: Any, ranks: Ranks) -> list[Any]:
    """The values of all ranks. All must call this."""
    values: list[Any] = [None] * ranks.size
    dist.all_gather_object(values, value, group=ranks.group)
    return values
