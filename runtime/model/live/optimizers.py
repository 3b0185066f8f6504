"""An optimizer of the model that was given to `parallelize` trains nothing: it says so.

Gradients are those of the network's parameters, which are other tensors. An optimizer
that was made of the model's parameters, before or after, would step without them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from synth.runtime.compiled.optimizers import after_step
from synth.runtime.tensor.partitioned import PartitionedTensor

# network -> of each parameter of the model: id -> its name, and where its words are.
# They are not kept: the model may be gone, and its parameters be the optimizer's alone
_GIVEN: weakref.WeakKeyDictionary[nn.Module, Mapping[int, tuple[str, int]]]
_GIVEN = weakref.WeakKeyDictionary()


def look_for_optimizers(network: nn.Module, model: nn.Module) -> None:
    """Look at what optimizers step. network: made of the model."""
    _GIVEN[network] = {
        id(each): (name, each.data_ptr()) for name, each in model.named_parameters()
    }
    _hook()


@cache
def _hook() -> None:
    """Once in a process."""
    register_optimizer_step_post_hook(after_step(require_trained))


def require_trained(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ValueError` for an optimizer whose gradients are those of a network."""
    every = [each for group in optimizer.param_groups for each in group["params"]]
    if all(each.grad is not None for each in every):
        return
    for network, given in tuple(_GIVEN.items()):
        its = [each for each in every if _is_of(each, given)]
        if not its or any(each.grad is not None for each in its):
            continue  # such a model is trained by itself
        if any(each.grad is not None for each in network.parameters()):
            more = f" and {len(its) - 1} more" if len(its) > 1 else ""
            kind = type(optimizer).__name__
            raise ValueError(
                f"{kind} has parameters of the model that was given to parallelize"
                f" ({given[id(its[0])][0]}{more}), which have no gradients: those of"
                f" its network have; make it of the network, {kind}(net.parameters(),"
                " ...)"
            )


def _is_of(values: Any, given: Mapping[int, tuple[str, int]]) -> bool:
    """Whether a tensor is one of the parameters of a model."""
    known = given.get(id(values))
    if known is None or isinstance(values, PartitionedTensor):
        return False
    return bool(known[1] == values.data_ptr())
