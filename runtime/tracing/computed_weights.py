"""Weights that hooks of torch compute from parameters: old norms, and pruning."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from synth.runtime.tensor.partitioned import PartitionedTensor


def computes_weight(hook: Any) -> bool:
    """Whether a hook computes a weight from parameters, and does nothing else."""
    kind = type(hook)
    prunes = issubclass(kind, BasePruningMethod)
    as_it_is = prunes and kind.__call__ is BasePruningMethod.__call__
    return as_it_is or kind in (WeightNorm, SpectralNorm)


def computed_weights(module: nn.Module) -> dict[str, Any]:
    """The names of the weights that hooks of a module compute, and the hooks."""
    hooks: list[Any] = [*filter(computes_weight, module._forward_pre_hooks.values())]
    return {getattr(e, "_tensor_name", "") or e.name: e for e in hooks}


def masked_weights(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Modules with the names of their pruned weights, and the hooks."""
    return [
        (module, name, hook)
        for module in model.modules()
        for name, hook in computed_weights(module).items()
        if isinstance(hook, BasePruningMethod)
    ]


def show_masked(found: list[tuple[nn.Module, str, Any]]) -> None:
    """Let modules have pruned weights as a pass computes them.

    By these the next pruning decides.
    """
    for module, name, hook in found:
        with torch.no_grad():
            made, shown = hook.apply_mask(module), getattr(module, name)
            if _alike(made, shown):
                shown.copy_(made)
            else:
                setattr(module, name, made)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    held = [e for e in (one, other) if isinstance(e, PartitionedTensor)]
    return len(held) == 2 and held[0]._partition == held[1]._partition
