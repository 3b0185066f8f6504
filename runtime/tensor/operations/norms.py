"""Norms of partitioned tensors, and values of lists of them in one message.

Gradient clipping and gradient scaling call these operations on all gradients at once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.tensor.operations.operands import argument, on_wholes
from synth.runtime.tensor.operations.reductions import (
    along,
    counted_words,
    keeps_dims,
    reduced_dims,
    wide,
)
from synth.runtime.tensor.partitioned import PartitionedTensor, own_words

Pair = tuple[torch.Tensor, torch.Tensor]


def vector_norm(func: Any, args: Any, kwargs: Any) -> Any:
    """`linalg_vector_norm` of all words or over dimensions."""
    given = args[0]
    order = float(argument(func, args, kwargs, "ord"))
    partition, dims = given._partition, reduced_dims(func, args, kwargs)
    if dims is None or len(dims) == given.dim():
        dtype = kwargs.get("dtype") or given.dtype
        (norm,) = norms([given], order)
        norm = norm.to(dtype)
        keep = keeps_dims(func, args, kwargs)
        return norm.reshape([1] * given.dim()) if keep else norm
    if partition.refined:
        return on_wholes(func, args, kwargs)
    return along(func, args, kwargs)


def foreach_norm(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """`_foreach_norm`: norms of a list of tensors, in one message per set of ranks."""
    given, order = args[0], argument(func, args, kwargs, "ord")
    dtype = kwargs.get("dtype")
    found = norms(given, float(order))
    pairs = zip(found, given, strict=True)
    return [norm.to(dtype or each.dtype) for norm, each in pairs]


def norms(tensors: Sequence[torch.Tensor], order: float) -> list[torch.Tensor]:
    """The norm of each tensor, in at least 32 bits."""
    power = order not in (math.inf, -math.inf, 0.0)
    sums: list[torch.Tensor] = []
    for each in tensors:
        own = each
        if isinstance(each, PartitionedTensor):
            partition = each._partition
            fill = math.inf if order == -math.inf else 0.0
            own = counted_words(each._local, partition, fill)
        if not own.numel():
            own_norm = torch.zeros((), dtype=wide(own.dtype), device=own.device)
            if order == -math.inf:
                own_norm += math.inf
        else:
            dtype = wide(own.dtype) if not own.is_complex() else None
            own_norm = torch.linalg.vector_norm(own, order, dtype=dtype)
        sums.append(own_norm.double().pow(order) if power else own_norm.double())
    reduce = {math.inf: dist.ReduceOp.MAX, -math.inf: dist.ReduceOp.MIN}.get(
        order, dist.ReduceOp.SUM
    )
    for places in _by_ranks(tensors):
        values = [sums[place] for place in places]
        _reduce_together(values, [tensors[place] for place in places], reduce)
    return [s.pow(1 / order) if power else s for s in sums]


def _by_ranks(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The places of partitioned tensors in a list, by their ranks and device."""
    found: dict[Any, list[int]] = {}
    for place, each in enumerate(tensors):
        if isinstance(each, PartitionedTensor):
            found.setdefault((each._partition.ranks, each.device), []).append(place)
    return list(found.values())


def _reduce_together(
    values: list[torch.Tensor], of: list[Any], op: dist.ReduceOp.RedOpType
) -> None:
    """Reduce scalars of tensors over their ranks in one message. NaN stays NaN."""
    like = of[0]._partition
    if len(of) > 1:
        order = zlib.crc32(", ".join(each._partition.of for each in of).encode())
        like = like.named(f"{like.of} and {len(of) - 1} others in the order {order:x}")
    packed = torch.stack(values)
    invalid = packed.isnan()
    if op != dist.ReduceOp.SUM:  # an extremum of ranks may drop a NaN
        flags = invalid.to(packed)
        like.all_reduce(flags, dist.ReduceOp.MAX)
        invalid = flags > 0
        packed = packed.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    like.all_reduce(packed, op)
    if op != dist.ReduceOp.SUM:
        packed[invalid] = math.nan
    for value, reduced in zip(values, packed, strict=True):
        value.copy_(reduced)


def non_finite(func: Any, args: Any, kwargs: Any) -> None:
    """GradScaler's unscaling: an overflow on one rank is one in all replicas."""
    gradients, found, inverse = args
    func([*map(own_words, gradients)], found, inverse)
    for places in _by_ranks(gradients):
        gradients[places[0]]._partition.all_reduce(found, dist.ReduceOp.MAX, True)


def foreach_max(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """`_foreach_max`: the largest word of each tensor."""
    return [each.max() for each in args[0]]


# -- weight normalization --------------------------------------------------------------
#
# w = g · v / |v|, a direction times a length per filter, where |v| is the norm over all
# dimensions but one (Salimans and Kingma, 2016). torch computes it in kernels of its
# own; here it is made of sums over ranks and of pointwise operations.


def norm(func: Any, args: Any, kwargs: Any) -> Any:
    """The older `norm`, by `linalg.vector_norm`."""
    names = {each.name for each in func._schema.arguments}
    order = argument(func, args, kwargs, "p")
    dims = argument(func, args, kwargs, "dim") if "dim" in names else None
    keep = "keepdim" in names and bool(argument(func, args, kwargs, "keepdim"))
    dtype = argument(func, args, kwargs, "dtype") if "dtype" in names else None
    order = 2 if order is None else order
    return torch.linalg.vector_norm(args[0], order, dims, keep, dtype=dtype)


def weight_normalized(
    func: Any, args: Any, kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight, and the norms of the direction."""
    direction, length = args[0], args[1]
    dims = _others(direction, int(argument(func, args, kwargs, "dim")))
    norms = torch.linalg.vector_norm(direction, 2, dims, True)
    return direction * (length / norms), norms


def weight_gradients(
    func: Any, args: Any, kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of direction and length: dg = s / |v|, dv = g / |v| (dw − v s / |v|²).

    s is the sum of dw · v over all dimensions but one.
    """
    gradient, direction, length, norms = args[:4]
    dims = _others(direction, int(argument(func, args, kwargs, "dim")))
    sums = (gradient * direction).sum(dims, keepdim=True)
    straight = gradient - direction * (sums / norms.square())
    return straight * (length / norms), sums / norms


def _others(values: torch.Tensor, dim: int) -> list[int]:
    return [each for each in range(values.dim()) if each != dim % values.dim()]


RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "linalg_vector_norm": vector_norm,
    "_foreach_norm": foreach_norm,
    "_foreach_max": foreach_max,
    "_amp_foreach_non_finite_check_and_unscale_": non_finite,
    "norm": norm,
    "_weight_norm_interface": weight_normalized,
    "_weight_norm_interface_backward": weight_gradients,
}
