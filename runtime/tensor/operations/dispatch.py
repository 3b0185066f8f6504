"""torch's operations on partitioned tensors: a rule for each, or an error.

A rule is called as `rule(func, args, kwargs)` below autograd. Plain tensors among the
arguments are wholes, the same on all ranks. A rule may communicate: all ranks call the
same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch

from synth.runtime.tensor.operations import (
    losses,
    norms,
    pointwise,
    reductions,
    reshape,
    sampling,
    views,
    weight_norm,
)
from synth.runtime.tensor.partitioned import PartitionedTensor

Rule = Callable[[Any, Any, Any], Any]
KNOWN = frozenset(
    (torch.Tensor, torch.nn.Parameter, PartitionedTensor, torch.nn.Buffer)
)
RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **reductions.RULES,
    **norms.RULES,
    **losses.RULES,
    **views.RULES,
    **reshape.RULES,
    **sampling.RULES,
    **weight_norm.RULES,
}


def dispatch(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Call an operation. Raises `NotImplementedError` where it has no rule."""
    if not KNOWN.issuperset(types):
        other = next(each for each in types if each not in KNOWN)
        raise TypeError(
            f"{short_name(func)} mixes a partitioned tensor and a {other.__name__};"
            " convert one of them: full_tensor() gives a plain tensor"
        )
    return rule_of(func)(func, args, kwargs)


@cache
def rule_of(func: Any) -> Rule:
    """The rule of an operation."""
    name = short_name(func)
    if name in RULES:
        return RULES[name]
    if name.startswith(("_foreach_", "_fused_")):
        return pointwise.foreach
    if torch.Tag.nondeterministic_seeded in func.tags:
        return refuse
    if torch.Tag.pointwise in func.tags:
        return pointwise.pointwise
    return refuse


def refuse(func: Any, args: Any, kwargs: Any) -> NoReturn:
    """Raise `NotImplementedError` for an operation that has no meaning on parts."""
    flat = [*args, *kwargs.values()]
    flat = [
        one for each in flat for one in (each if isinstance(each, list) else [each])
    ]
    given = next((one for one in flat if isinstance(one, PartitionedTensor)), None)
    of = "" if given is None else f" of {tuple(given.shape)}"
    name = short_name(func)
    if func.namespace in ("c10d", "_c10d_functional"):
        raise NotImplementedError(
            f"{name} of torch.distributed is not defined on a partitioned tensor{of}:"
            " its ranks already hold one global tensor; call full_tensor(), or use"
            " to_local() for the own part"
        )
    raise NotImplementedError(
        f"{name} is not defined on a partitioned tensor{of}; call full_tensor() first"
    )


def short_name(func: Any) -> str:
    """The name of an operation without namespace and overload."""
    name: str = func._schema.name
    return name.rpartition("::")[2]
