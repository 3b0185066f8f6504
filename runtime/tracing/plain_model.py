"""Refuses a model that something else has wrapped, divided, compiled or not finished.

Each sentence names what to give instead. Classes are known by their names, so that none
of their modules is imported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_GIVE = "parallelize {name}.module"
_BEFORE = "parallelize the model before it is given to {word}"
# class of a module -> what it does, and what to give instead
WRAPPERS = {
    "DistributedDataParallel": ("sums gradients itself", _GIVE),
    "DataParallel": ("divides the batch itself", _GIVE),
    "FullyShardedDataParallel": ("divides the parameters itself", _BEFORE),
    "FSDPModule": (
        "divides the parameters itself",
        "parallelize the model before fully_shard",
    ),
    "OptimizedModule": (
        "was made by torch.compile, for one process",
        "set {name} = {name}._orig_mod before",
    ),
    "ScriptModule": (
        "was made by torch.jit, whose calls cannot be followed",
        "parallelize the module that was given to torch.jit",
    ),
    "Network": (
        "is parallelized already",
        "use it as it is, or parallelize the model that it was made of",
    ),
    "SyncBatchNorm": (
        "makes statistics of the whole batch, as the ranks do with a BatchNorm and"
        " batch_norm='global'",
        "parallelize the model before convert_sync_batchnorm",
    ),
}
# class of a parameter or buffer -> the same
DIVIDED = {
    "DTensor": (
        "is divided already",
        "parallelize the model before its parameters are made DTensors, or with"
        " full_tensor() of each",
    ),
    "PartitionedTensor": (
        "is of a network of synth.parallelize",
        "parallelize the whole model that this is a part of",
    ),
}
OWNERS = "torch.", "synth."


def uncompiled(model: Any) -> Any:
    """The model that torch.compile wraps, or the model itself where none is wrapped."""
    while (found := _known(model, WRAPPERS)) and found[0] == "OptimizedModule":
        model = model._orig_mod
    return model


def require_plain(model: Any) -> None:
    """Raise `ValueError` for what is no plain module of torch with all its values."""
    if not isinstance(model, nn.Module):
        kind = model if isinstance(model, type) else type(model)
        what = "the class" if kind is model else _a(kind.__name__)
        shown = f"{what} {kind.__name__}" if kind is model else what
        raise ValueError(
            f"the model is {shown}, and no torch.nn.Module; give one, such as a module"
            " whose forward calls it"
        )
    for name, module in model.named_modules():
        found = _known(module, WRAPPERS)
        if found:
            word, (does, remedy) = found
            shown = f"model.{name}" if name else "model"
            remedy = remedy.format(name=shown, word=word)
            what = f"the module {name}" if name else "the model"
            raise ValueError(f"{what} is {_a(word)}, which {does}; {remedy}")
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(values):
            owner = model.get_submodule(name.rpartition(".")[0])
            raise ValueError(
                f"{name} has no shape before the first call of its"
                f" {type(owner).__name__}; call the model once on a batch, with equal"
                " seeds on all ranks, and parallelize it then"
            )
        found = _known(values, DIVIDED)
        if found:
            word, (does, remedy) = found
            raise ValueError(f"{name} is a {word}, which {does}; {remedy}")


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'AEIOU' else 'a'} {word}"


def _known(
    it: nn.Module | torch.Tensor, classes: dict[str, tuple[str, str]]
) -> tuple[str, tuple[str, str]] | None:
    """The first class of these that an object has, with its entry."""
    for each in type(it).__mro__:
        if each.__name__ in classes and each.__module__.startswith(OWNERS):
            return each.__name__, classes[each.__name__]
    return None
