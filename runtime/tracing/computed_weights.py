"""Weights that hooks of torch compute from parameters: old norms, and pruning."""

from __future__ import annotations

from functools import cache
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


class ComputesWeights(nn.Module):
    """A module of a network whose hooks compute weights, which are shown as they are.

    In one process a hook stores the weight when the module is called. The network calls
    no module, so it is computed from its parameters where it is read.
    """

    def __getattr__(self, name: str) -> Any:
        hook = _computed(self).get(name)
        if hook is None:
            return super().__getattr__(name)
        kept = {"do_power_iteration": False} if isinstance(hook, SpectralNorm) else {}
        return hook.compute_weight(self, **kept)

    def __dir__(self) -> list[str]:
        known: list[str] = super().__dir__()  # type: ignore[no-untyped-call]
        return sorted({*known, *_computed(self)})

    def __delattr__(self, name: str) -> None:
        if name in vars(self) or name not in _computed(self):
            super().__delattr__(name)


def show_computed(model: nn.Module) -> None:
    """Let modules compute the weights of their hooks where these are read.

    A module whose hook was removed has its own class again.
    """
    for module in model.modules():
        names, kind = _computed(module), type(module)
        if names and not isinstance(module, ComputesWeights):
            module.__class__ = _that_computes(kind)  # type: ignore[arg-type]
        elif not names and isinstance(module, ComputesWeights):
            module.__class__ = kind.__mro__[2]
        for name in names:
            vars(module).pop(name, None)


@cache
def _that_computes(kind: type[nn.Module]) -> type[nn.Module]:
    """A class of modules by the same name."""
    named = {name: getattr(kind, name) for name in ("__module__", "__qualname__")}
    return type(
        kind.__name__, (ComputesWeights, kind), {**named, "__doc__": kind.__doc__}
    )


def _computed(module: nn.Module) -> dict[str, Any]:
    """The weights of old norms, by their names; pruned ones are shown by each pass."""
    found = (
        computed_weights(module).items() if "_forward_pre_hooks" in vars(module) else ()
    )
    return {name: e for name, e in found if not isinstance(e, BasePruningMethod)}


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
