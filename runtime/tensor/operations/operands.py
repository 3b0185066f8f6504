"""Brings the arguments of an operation to one partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from synth.runtime.comm.layout import Layout, split_copies
from synth.runtime.grid.boxes import within
from synth.runtime.rules.rule import Rule
from synth.runtime.tensor.partition import Partition, require_same_ranks
from synth.runtime.tensor.partitioned import PartitionedTensor, gathered_words


class NoParts(Exception):
    """Parts of a tensor do not allow an operation: it is computed from wholes."""


def short_name(func: Any) -> str:
    """The name of an operation without namespace and overload."""
    name: str = func._schema.name
    return name.rpartition("::")[2]


def to_partition(value: Any, base: Partition) -> Any:
    """What this rank needs of an operand to combine it with its box of `base`.

    A partitioned tensor moves there if it lies elsewhere, a plain one is cut. What is
    no tensor, or has no dimensions, stays.
    """
    if isinstance(value, PartitionedTensor):
        own = value._partition
        if own is base:
            return value._local
        require_same_ranks(own, base)
        if not value.dim():
            return value._local
        return own.move(value._local, _placed(base, value.shape))
    if isinstance(value, torch.Tensor) and value.dim():
        if base.refined and value.shape != base.shape:
            value = value.expand(base.shape)
        return _placed(base, value.shape).cut(value)
    return value


def _placed(base: Partition, wanted: Sequence[int]) -> Partition:
    """The partition of an operand; that of a refined base is the base itself."""
    if base.refined and tuple(wanted) != tuple(base.shape):
        raise NoParts
    return base.operand(wanted)


def to_whole(value: Any) -> Any:
    """A partitioned tensor as the whole; all else as it is."""
    if isinstance(value, list | tuple):
        given = any(isinstance(each, torch.Tensor) for each in value)
        return type(value)(map(to_whole, value)) if given else value
    return gathered_words(value)


def on_wholes(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operation on whole tensors. Its result is the same on all ranks."""
    return func(*map(to_whole, args), **{k: to_whole(v) for k, v in kwargs.items()})


def common_partition(tensors: Sequence[torch.Tensor]) -> Partition:
    """The partition of the result of a broadcast: that of the largest operand."""
    parts = [each for each in tensors if isinstance(each, PartitionedTensor)]
    base = max(parts, key=lambda each: each.numel())._partition
    if len(parts) == len(tensors) and all(each.shape == base.shape for each in parts):
        return base
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))  # type: ignore[no-untyped-call]
    if shape == base.shape:
        return base
    if base.refined:
        raise NoParts
    return base.expanded(shape)


def wrap(result: Any, partition: Partition) -> Any:
    """Local results as partitioned tensors."""
    if isinstance(result, torch.Tensor):
        return PartitionedTensor(result, partition)
    if isinstance(result, tuple | list):
        return type(result)(wrap(each, partition) for each in result)
    return result


def layout_of(given: PartitionedTensor) -> Layout:
    """The boxes of all ranks, in the dimensions of the tensor's shape."""
    if given._partition.refined:
        raise NoParts
    return given._partition.layout


def by_rule(
    func: Any, given: PartitionedTensor, rule_of: Callable[[Layout], Rule]
) -> Any:
    """What the rule of an operation makes of a tensor.

    Where every rank has what it reads, the result is a view as torch gives it.
    """
    layout, partition = layout_of(given), given._partition
    rule = rule_of(layout)
    operand = rule.operands[0]
    here = operand.own_rows(given._local)
    if here is None and isinstance(operand.reads, Layout):
        here = partition.move(given._local, Partition(operand.reads))
    elif here is None:
        if not partition.disjoint:
            raise NoParts
        owned = split_copies(layout)
        own = given._local[within(owned.mine, partition.box)].contiguous()
        rule = rule_of(owned)
        partition.ranks.require(f"{short_name(func)} of {partition.said}")
        here = rule.operands[0].brought(own, lambda _: None)
    return wrap(rule.call(here), Partition(rule.out, of=partition.of))


@lru_cache(2**12)
def written(func: Any) -> tuple[tuple[int, str], ...]:
    """Places and names of the arguments that an operation changes."""
    return tuple(
        (place, str(argument.name))
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def changed_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation changes, those in lists one by one."""
    found = list[Any]()
    for place, name in written(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        found += value if isinstance(value, list | tuple) else [value]
    return found


@lru_cache(2**12)
def position(func: Any, name: str) -> int | None:
    """The place of an argument of an operation; None if it has no such argument."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index(name) if name in names else None


def argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """The value of an argument of an operation, or its default."""
    if name in kwargs:
        return kwargs[name]
    place = position(func, name)
    assert place is not None
    if place < len(args):
        return args[place]
    return func._schema.arguments[place].default_value


def with_argument(func: Any, args: Any, kwargs: Any, name: str, value: Any) -> Any:
    """The arguments with one of them replaced."""
    place = position(func, name)
    assert place is not None
    if place < len(args):
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}
