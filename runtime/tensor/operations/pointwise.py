"""Operations on every word by itself: pointwise, copies, creation, lists of tensors."""

from __future__ import annotations

from typing import Any

import torch

from synth.runtime.tensor.operations.operands import (
    changed_by,
    common_partition,
    on_wholes,
    short_name,
    to_partition,
    to_whole,
    wrap,
    written,
)
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor


def pointwise(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute where the words are; the result has the partition of the operands.

    An operation that changes a plain tensor gets whole operands.
    """
    if changes := written(func):
        place, name = changes[0]
        changed = args[place] if place < len(args) else kwargs.get(name)
        return _changed(func, args, kwargs, changed)
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    base = common_partition(tensors)
    here = [to_partition(each, base) for each in args]
    named = {name: to_partition(each, base) for name, each in kwargs.items()}
    if len(base.local_shape) != len(base.shape):
        named.pop("memory_format", None)  # of groups apart, which it is not of
    return wrap(base.ranks.on_own_words(short_name(func), func, *here, **named), base)


def _changed(func: Any, args: Any, kwargs: Any, changed: Any) -> Any:
    """Change a tensor in place."""
    if not isinstance(changed, PartitionedTensor):
        return on_wholes(func, args, kwargs)
    base = changed._partition
    here = [to_partition(each, base) for each in args]
    named = {name: to_partition(each, base) for name, each in kwargs.items()}
    base.ranks.on_own_words(short_name(func), func, *here, **named)
    return changed


def detach(func: Any, args: Any, kwargs: Any) -> PartitionedTensor:
    """The same words outside of autograd."""
    given: PartitionedTensor = args[0]
    return PartitionedTensor(given._local, given._partition)


def foreach(func: Any, args: Any, kwargs: Any) -> Any:
    """Pointwise operations on lists of tensors, as fused optimizers call them."""
    first = args[0]
    bases = [_base(each, args, place, func) for place, each in enumerate(first)]

    def here(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return to_whole(value)
        return [
            _listed(each, base)
            for each, base in zip(value, bases, strict=len(value) == len(bases))
        ]

    result = func(*map(here, args), **{k: here(v) for k, v in kwargs.items()})
    if written(func):
        for each in changed_by(func, args, kwargs):
            if isinstance(each, PartitionedTensor) and not each.is_inference():
                torch.autograd.graph.increment_version(each)  # as torch's own do
    if result is None or written(func):
        return result
    pairs = zip(result, bases, strict=True)
    return [each if base is None else wrap(each, base) for each, base in pairs]


def _base(first: Any, args: Any, place: int, func: Any) -> Partition | None:
    """Where the tensors at one place of the lists are computed; None for wholes."""
    if isinstance(first, PartitionedTensor):
        return first._partition
    if written(func):
        return None
    for values in args[1:]:
        listed = isinstance(values, list | tuple) and place < len(values)
        if listed and isinstance(values[place], PartitionedTensor):
            return common_partition([first, values[place]])
    return None


def _listed(value: Any, base: Partition | None) -> Any:
    return to_whole(value) if base is None else to_partition(value, base)


def create(func: Any, args: Any, kwargs: Any) -> Any:
    """`new_zeros` and the like: partitioned alike for the same shape, else whole."""
    like, size = args[0], args[1]
    if tuple(size) != tuple(like.shape):
        return func(like._local, *args[1:], **kwargs)
    if func._schema.name == "aten::new_empty_strided":
        made = like._local.new_empty(like._local.shape, **kwargs)
    else:
        made = func(like._local, list(like._local.shape), *args[2:], **kwargs)
    return wrap(made, like._partition)


def same_size(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether two tensors have one shape."""
    return bool(args[0].shape == args[1].shape)


def log_sigmoid(func: Any, args: Any, kwargs: Any) -> Any:
    """`log_sigmoid_forward`: the values, and a buffer that is empty on some devices."""
    given = args[0]
    made, buffer = func(given._local)
    if buffer.shape != made.shape:  # then the backward pass does not read it
        buffer = torch.zeros_like(made)
    return wrap((made, buffer), given._partition)


COPIES = (
    *("alias", "clone", "_to_copy", "lift_fresh", "contiguous"),
    *("zeros_like", "ones_like", "empty_like", "full_like"),
    *("copy_", "zero_"),
)
RULES: dict[str, Any] = {
    **dict.fromkeys(COPIES, pointwise),
    "detach": detach,
    "log_sigmoid_forward": log_sigmoid,
    **dict.fromkeys(
        ("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"), create
    ),
    "is_same_size": same_size,
}
