"""Other shapes of a partitioned tensor: permuted, sliced, divided, shifted, joined.

What the cut dimensions do not allow is computed from the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from synth.runtime.comm.layout import Layout, split_copies
from synth.runtime.grid.boxes import Box, volume, with_interval, within
from synth.runtime.rules.movement import in_order, reindexed
from synth.runtime.rules.row_calls import rows_of
from synth.runtime.tensor.operations.operands import (
    NoParts,
    argument,
    short_name,
    to_partition,
    wrap,
)
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor


def _layout(given: PartitionedTensor) -> Layout:
    """The boxes of all ranks, in the dimensions of the tensor's shape."""
    if given._partition.refined:
        raise NoParts
    return given._partition.layout


def permute(func: Any, args: Any, kwargs: Any) -> Any:
    """`permute`, `transpose` and `t`."""
    given = args[0]
    dims = list(range(given.dim()))
    name = func._schema.name
    if name == "aten::permute":
        dims = [dim % len(dims) for dim in args[1]]
    elif name == "aten::t":
        dims = dims[::-1]
    else:
        one, other = (dim % len(dims) for dim in args[1:3])
        dims[one], dims[other] = dims[other], dims[one]
    placed = in_order(_layout(given), dims)
    return wrap(given._local.permute(dims), Partition(placed))


def rows(func: Any, args: Any, kwargs: Any, part: int = 0) -> Any:
    """Rows that are picked, moved or repeated, by the rule that models have for them.

    Where every rank has the rows that it reads, the result is a view as torch gives it.
    """
    given = args[0]
    found = rows_of(short_name(func), given.shape, args[1:], kwargs, part)
    if found is None:
        raise NoParts
    partition = given._partition
    if not found.shape and not partition.replicated:  # some ranks cannot hold a word
        placed = partition.uncut_along(range(given.dim()))
        given = PartitionedTensor(to_partition(given, placed), placed)
    rule = reindexed(_layout(given), *found)
    here = rule.operands[0].own_rows(given._local)
    if here is None:
        if not partition.disjoint:
            raise NoParts
        owned = split_copies(_layout(given))
        own = given._local[within(owned.mine, partition.box)].contiguous()
        rule = reindexed(owned, *found)
        partition.ranks.require(f"{short_name(func)} of {tuple(given.shape)}")
        here = rule.operands[0].brought(own, lambda _: None)
    return wrap(rule.call(here), Partition(rule.out))


def several(func: Any, args: Any, kwargs: Any) -> Any:
    """`split`, `split_with_sizes`, `unbind`: parts along one dimension."""
    parts = func(torch.empty(args[0].shape, device="meta"), *args[1:], **kwargs)
    return [rows(func, args, kwargs, part) for part in range(len(parts))]


def unsliced(func: Any, args: Any, kwargs: Any) -> Any:
    """`slice_backward`: the gradient of a slice among zeros.

    The zeros before and after are on the ranks with the first and the last words.
    """
    gradient, whole, dim, first, last, step = args
    dim %= len(whole)
    low, high, _ = slice(first, last).indices(whole[dim])
    return _among_zeros(gradient, whole, dim, range(low, max(low, high), step))


def unselected(func: Any, args: Any, kwargs: Any) -> Any:
    """`select_backward`: the gradient of one index among zeros."""
    gradient, whole, dim, index = args
    dim, index = dim % len(whole), index % whole[dim]
    one = gradient.unsqueeze(dim)
    return _among_zeros(one, whole, dim, range(index, index + 1))


def _among_zeros(
    given: PartitionedTensor, whole: Sequence[int], dim: int, taken: range
) -> Any:
    """A tensor at some indices of a dimension; the rest is 0."""
    extent = len(taken)

    def grown(box: Box) -> Box:
        low, high = box[dim]
        if low == high:
            return box
        first = 0 if low == 0 else taken[low]
        last = whole[dim] if high == extent else taken[high]
        return (*box[:dim], (first, last), *box[dim + 1 :])

    if not extent:
        placed = given._partition.evenly(whole)
        return wrap(given._local.new_zeros(placed.local_shape), placed)
    placed = _placed(given, whole, grown)
    local = given._local.new_zeros(placed.local_shape)
    low, high = given.box[dim]
    if low < high:
        picks = [slice(None)] * len(whole)
        start = taken[low] - placed.box[dim][0]
        picks[dim] = slice(start, start + (high - low - 1) * taken.step + 1, taken.step)
        local[tuple(picks)] = given._local
    return wrap(local, placed)


def stack(func: Any, args: Any, kwargs: Any) -> Any:
    """`stack`: joined along a new dimension."""
    parts = list(args[0])
    dim = argument(func, args, kwargs, "dim") % (parts[0].dim() + 1)
    return torch.cat([each.unsqueeze(dim) for each in parts], dim)


def expand(func: Any, args: Any, kwargs: Any) -> Any:
    """`expand`: dimensions of extent 1 become longer, on all ranks."""
    given = args[0]
    skip = len(args[1]) - given.dim()
    wanted = [
        given.shape[dim - skip] if extent == -1 else extent
        for dim, extent in enumerate(args[1])
    ]
    if tuple(wanted) == tuple(given.shape):
        return wrap(given._local.view_as(given._local), given._partition)
    if given._partition.refined:
        raise NoParts
    placed = given._partition.expanded(wanted)
    if not volume(placed.box):
        return wrap(given._local.new_empty(placed.local_shape), placed)
    return wrap(given._local.expand(placed.local_shape), placed)


def _placed(
    given: PartitionedTensor, whole: Sequence[int], of_box: Callable[[Box], Box]
) -> Partition:
    """The partition in which each box is made from that of `given`."""
    return Partition(
        _layout(given).with_boxes(whole, map(of_box, _layout(given).boxes))
    )


def diagonal(func: Any, args: Any, kwargs: Any) -> Any:
    """`diagonal` of two dimensions that are not cut: the last of the result."""
    given = args[0]
    offset, *dims = (
        argument(func, args, kwargs, n) for n in ("offset", "dim1", "dim2")
    )
    gone = {dim % given.dim() for dim in dims}
    if gone & given._partition.cut_dims:
        raise NoParts
    empty = torch.empty(given.shape, device="meta").diagonal(offset, *dims)

    def without(box: Box) -> Box:
        if not volume(box):
            return ((0, 0),) * empty.dim()
        kept = (each for dim, each in enumerate(box) if dim not in gone)
        return (*kept, (0, empty.shape[-1]))

    placed = _placed(given, empty.shape, without)
    if not volume(placed.box):
        return wrap(given._local.new_empty(placed.local_shape), placed)
    return wrap(given._local.diagonal(offset, *dims), placed)


def cat(func: Any, args: Any, kwargs: Any) -> Any:
    """`cat` along a dimension that is not cut."""
    parts = list(args[0])
    dim = argument(func, args, kwargs, "dim") % parts[0].dim()
    first = next(each for each in parts if isinstance(each, PartitionedTensor))
    base = first._partition.uncut_along([dim])
    here = []
    for each in parts:
        boxes = [
            with_interval(box, dim, (0, each.shape[dim])) for box in base.layout.boxes
        ]
        here.append(to_partition(each, base.with_boxes(each.shape, boxes)))
    extent = sum(each.shape[dim] for each in parts)
    whole = [*first.shape[:dim], extent, *first.shape[dim + 1 :]]
    boxes = [with_interval(box, dim, (0, extent)) for box in base.layout.boxes]
    return wrap(torch.cat(here, dim), base.with_boxes(whole, boxes))


RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    **dict.fromkeys(("permute", "transpose", "t"), permute),
    **dict.fromkeys(("squeeze", "unsqueeze", "slice", "select"), rows),
    **dict.fromkeys(("flip", "roll", "repeat", "constant_pad_nd"), rows),
    **dict.fromkeys(("split", "split_with_sizes", "unbind"), several),
    "expand": expand,
    "diagonal": diagonal,
    "cat": cat,
    "stack": stack,
    "slice_backward": unsliced,
    "select_backward": unselected,
}
