"""Sums, means and extrema of partitioned tensors: every word counts once.

Over dimensions that are not cut, a reduction is local and its result partitioned. Over
all dimensions it is a plain tensor, the same on all ranks. Over cut dimensions, sums
are added where the words of the result lie; for the rest, the tensor first moves to a
partition that does not cut them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.comm.layout import even
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.grid.boxes import shape, volume, within
from synth.runtime.rules.local_forms import regrouped, whole_along
from synth.runtime.rules.rule import is_trainable
from synth.runtime.rules.scans import cut_scan, scanned_dtype
from synth.runtime.tensor.operations.operands import (
    NoParts,
    argument,
    layout_of,
    on_wholes,
    short_name,
    to_partition,
    with_argument,
    wrap,
)
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor, own_words

SMALL = 2**14  # words of a result that every rank gets whole


def counted_words(
    local: torch.Tensor, partition: Partition, fill: float
) -> torch.Tensor:
    """The own words with `fill` in place of those that another rank counts."""
    if partition.counted == (partition.box,) or not local.numel():
        return local
    kept = torch.full_like(local, fill)
    for box in partition.counted:
        here = within(box, partition.box)
        kept[here] = local[here]
    return kept


def summed(
    local: torch.Tensor, partition: Partition, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The sum of all words, each counted once, in a type that is wide enough."""
    own = counted_words(local, partition, 0)
    result = own.sum(dtype=dtype or wide(local.dtype))
    partition.all_reduce(result)
    return result


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of a type are summed over ranks."""
    floats = dtype.is_floating_point or dtype.is_complex
    return sum_dtype(dtype) if floats else torch.int64


NONE = "aten::any", "aten::all"  # along no dimension reduce nothing


def reduced_dims(func: Any, args: Any, kwargs: Any) -> tuple[int, ...] | None:
    """The dimensions that an operation reduces, counted from 0; None for all."""
    if not any(each.name == "dim" for each in func._schema.arguments):
        return None
    given = argument(func, args, kwargs, "dim")
    every = func._schema.name not in NONE  # for an empty list
    if given is None or (every and isinstance(given, list | tuple) and not given):
        return None
    dims = given if isinstance(given, list | tuple) else [given]
    return tuple(dim % max(1, args[0].dim()) for dim in dims)


def keeps_dims(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation keeps reduced dimensions with the extent 1."""
    names = [each.name for each in func._schema.arguments]
    return "keepdim" in names and bool(argument(func, args, kwargs, "keepdim"))


# -- sums ------------------------------------------------------------------------------


def total(func: Any, args: Any, kwargs: Any) -> Any:
    """`sum` and `mean`, of all words or over dimensions."""
    given = args[0]
    partition, dims = given._partition, reduced_dims(func, args, kwargs)
    mean = func._schema.name == "aten::mean"
    if partition.refined and dims is not None and len(dims) < given.dim():
        return on_wholes(func, args, kwargs)
    every = range(given.dim())
    dims = tuple(every) if dims is None else dims
    if not partition.cut_dims & set(dims) and len(dims) < given.dim():
        keep = keeps_dims(func, args, kwargs)
        return wrap(
            func(given._local, *args[1:], **kwargs), partition.without(dims, keep)
        )
    dtype = kwargs.get("dtype") or (
        torch.int64 if not is_trainable(given) and not mean else given.dtype
    )
    add = wide(dtype)
    keep = keeps_dims(func, args, kwargs)
    count = math.prod(given.shape[dim] for dim in dims) if mean else 1
    if len(dims) == given.dim():
        result = summed(given._local, partition, add)
        if mean:
            result = result / count
        result = result.to(dtype)
        return result.reshape([1] * given.dim()) if keep else result
    own = counted_words(given._local, partition, 0)
    partial = own.sum(dims, keepdim=keep, dtype=add)
    return _added(partial, partition.without(dims, keep), count, dtype)


def _added(
    partial: torch.Tensor, held: Partition, count: int, dtype: torch.dtype
) -> torch.Tensor:
    """Partial sums, of which each rank holds those in its box, added over the ranks."""
    if math.prod(held.shape) <= SMALL:
        whole = partial.new_zeros(held.shape)
        whole[within(held.box, held.frame)] = partial
        held.all_reduce(whole)
        return (whole / count if count != 1 else whole).to(dtype)
    owned = even(held.shape, held.ranks)
    part = held.add(partial, owned)
    part = (part / count if count != 1 else part).to(dtype)
    return PartitionedTensor(part, Partition(owned, of=held.of))


# -- extrema, truth values and others --------------------------------------------------


def extremum(func: Any, args: Any, kwargs: Any) -> Any:
    """`amax`, `max`, `any`, `prod` and the like, of all words or over dimensions."""
    given = args[0]
    partition, dims = given._partition, reduced_dims(func, args, kwargs)
    if dims is not None and (
        len(dims) < given.dim() or len(func._schema.returns) > 1  # and where it is
    ):
        return along(func, args, kwargs)
    parts = _gathered(func, given, partition)
    keep = keeps_dims(func, args, kwargs)
    if dims is not None:
        one = argument(func, args, kwargs, "dim")
        over = [0] if isinstance(one, list | tuple) else 0
        args, kwargs = with_argument(func, args, kwargs, "dim", over)
    result = func(parts, *args[1:], **kwargs)
    if keep:
        return result.reshape([1] * given.dim())
    return result.reshape(())


def _gathered(func: Any, given: torch.Tensor, partition: Partition) -> torch.Tensor:
    """The reductions of the ranks' own parts in one vector, without empty parts."""
    local = own_words(given)
    plain = getattr(torch, func._schema.name.partition("::")[2])
    name = func._schema.name
    if name == "aten::prod":
        local = counted_words(local, partition, 1)
    own = plain(local if local.numel() else local.new_zeros(1)).reshape(1)
    pairs = zip(partition.all_gather(own), partition.layout.boxes, strict=True)
    kept = [value for value, box in pairs if volume(box)]
    return torch.cat(kept) if kept else local.new_empty(0)


def along(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation along one or some dimensions, which are brought onto one rank.

    Its result has the extents of the partition along the others.
    """
    given = [each for each in args if isinstance(each, PartitionedTensor)]
    largest = max(given, key=lambda each: each.numel())
    dims = reduced_dims(func, (largest, *args[1:]), kwargs)
    if dims is None:
        raise NoParts
    layout_of(largest)
    base = largest._partition.uncut_along(dims)
    here = [to_partition(each, base) for each in args]
    whole = func(*map(_meta, args), **kwargs)
    some = volume(base.box) > 0
    made = func(*here, **kwargs) if some else whole  # without words of the base

    def placed(like: torch.Tensor, local: torch.Tensor) -> Any:
        every = range(len(base.shape))
        kept = [d for d in every if like.dim() == len(every) or d not in dims]
        out = regrouped(base.layout, whole_along(base.shape, dims, like.shape, kept))
        assert out is not None
        if not some:
            own = shape(out.mine)
            local = largest._local.new_empty(own, dtype=like.dtype)
        return wrap(local, Partition(out, of=base.of))

    if isinstance(whole, torch.Tensor):
        return placed(whole, made)
    return tuple(map(placed, whole, made))


def scan(func: Any, args: Any, kwargs: Any) -> Any:
    """`cumsum` and the like: rows before the own ones come as one state."""
    given = args[0]
    (dim,) = reduced_dims(func, args, kwargs) or (0,)
    found = cut_scan(short_name(func), dim, layout_of(given)) if given.dim() else None
    if found is None:
        return along(func, args, kwargs)
    dtype = kwargs.get("dtype") or scanned_dtype(found.name, given)
    given._partition.ranks.require(f"{found.name} of {given._partition.said}")
    return wrap(found(given._local, dtype, lambda _: None), given._partition)


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    return value


def spread(func: Any, args: Any, kwargs: Any) -> Any:
    """`var` and `std`, of all words or over dimensions."""
    given = args[0]
    dims = reduced_dims(func, args, kwargs)
    if dims is not None and len(dims) < given.dim():
        return along(func, args, kwargs)
    correction = argument(func, args, kwargs, "correction")
    correction = 1 if correction is None else correction
    mean = total(torch.ops.aten.mean.default, (given,), {})
    partition = given._partition
    centered = (given._local - mean).to(wide(given.dtype))
    squares = summed(centered.square(), partition)
    variance = (squares / max(0, given.numel() - correction)).to(given.dtype)
    if keeps_dims(func, args, kwargs):
        variance, mean = (each.reshape([1] * given.dim()) for each in (variance, mean))
    if func._schema.name.startswith("aten::var_mean"):
        return variance, mean
    return variance.sqrt() if "std" in func._schema.name else variance


# -- values for Python -----------------------------------------------------------------


def scalar(func: Any, args: Any, kwargs: Any) -> Any:
    """`item()` of a tensor with one word."""
    return func(args[0]._partition.gather(args[0]._local))


def equal(func: Any, args: Any, kwargs: Any) -> bool:
    """`torch.equal`: whether two tensors have one shape and the same words."""
    one, other = args
    if one.shape != other.shape:
        return False
    base = (one if isinstance(one, PartitionedTensor) else other)._partition
    same = func(to_partition(one, base), to_partition(other, base))
    found = torch.tensor(int(same), device=one.device)
    base.all_reduce(found, dist.ReduceOp.MIN)
    return bool(found)


def non_zero_count(func: Any, args: Any, kwargs: Any) -> Any:
    """`count_nonzero`, by a sum."""
    dims = reduced_dims(func, args, kwargs)
    found = args[0] != 0
    return found.sum() if dims is None else found.sum(dims)


Rule = Callable[[Any, Any, Any], Any]
RULES: dict[str, Rule] = {
    **dict.fromkeys(("sum", "mean"), total),
    **dict.fromkeys(("amax", "amin", "max", "min", "any", "all", "prod"), extremum),
    **dict.fromkeys(("_is_any_true", "_is_all_true"), extremum),  # detect_anomaly
    **dict.fromkeys(("argmax", "argmin", "topk", "sort", "logsumexp"), along),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), scan),
    **dict.fromkeys(("cummax", "cummin", "_fft_r2c", "_fft_c2r", "_fft_c2c"), along),
    **dict.fromkeys(("median", "nanmedian", "kthvalue", "mode", "glu"), along),
    **dict.fromkeys(("_softmax", "_log_softmax"), along),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), along),
    **dict.fromkeys(("var", "std", "var_mean"), spread),
    "count_nonzero": non_zero_count,
    "_local_scalar_dense": scalar,
    "equal": equal,
}
