"""Other shapes of a partitioned tensor: permuted, sliced, divided, joined.

No words move. What the cut dimensions do not allow is computed from the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from synth.runtime.grid.boxes import Box, intersect, volume, with_interval
from synth.runtime.tensor.operations.operands import (
    NoParts,
    argument,
    to_partition,
    wrap,
)
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor


def _map(
    given: PartitionedTensor, whole: Sequence[int], of_box: Callable[[Box], Box]
) -> Partition:
    """The partition in which each box is made from that of `given`."""
    partition = given._partition
    if partition.refined:
        raise NoParts
    return partition.with_boxes(whole, [of_box(box) for box in partition.layout.boxes])


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
    whole = [given.shape[dim] for dim in dims]
    placed = _map(given, whole, lambda box: tuple(box[dim] for dim in dims))
    return wrap(given._local.permute(dims), placed)


def squeeze(func: Any, args: Any, kwargs: Any) -> Any:
    """`squeeze`: dimensions of extent 1 go."""
    given = args[0]
    dims = args[1] if len(args) > 1 else list(range(given.dim()))
    wanted = dims if isinstance(dims, list | tuple) else [dims]
    gone = {dim % max(1, given.dim()) for dim in wanted}
    gone = {dim for dim in gone if given.dim() and given.shape[dim] == 1}
    return _without(given, gone)


def _without(given: PartitionedTensor, gone: set[int]) -> Any:
    kept = [dim for dim in range(given.dim()) if dim not in gone]
    whole = [given.shape[dim] for dim in kept]

    def without(box: Box) -> Box:
        return tuple(box[dim] if volume(box) else (0, 0) for dim in kept)

    if not kept and not given._partition.replicated:
        raise NoParts
    placed = _map(given, whole, without)
    if not volume(given.box):
        return wrap(given._local.new_empty(placed.local_shape), placed)
    return wrap(given._local.squeeze(sorted(gone)), placed)


def unsqueeze(func: Any, args: Any, kwargs: Any) -> Any:
    """`unsqueeze`: one more dimension of extent 1."""
    given, dim = args[0], args[1] % (args[0].dim() + 1)
    whole = [*given.shape[:dim], 1, *given.shape[dim:]]
    placed = _map(given, whole, lambda box: (*box[:dim], (0, 1), *box[dim:]))
    return wrap(given._local.unsqueeze(dim), placed)


def sliced(func: Any, args: Any, kwargs: Any) -> Any:
    """`slice`: an interval of one dimension; some ranks may then hold nothing."""
    given = args[0]
    dim = argument(func, args, kwargs, "dim") % given.dim()
    step = argument(func, args, kwargs, "step")
    first, last = (argument(func, args, kwargs, name) for name in ("start", "end"))
    low, high, _ = slice(first, last).indices(given.shape[dim])
    if step != 1:
        return _strided(given, dim, low, max(low, high), step)
    return _interval(given, dim, low, max(low, high))


def _interval(given: PartitionedTensor, dim: int, low: int, high: int) -> Any:
    whole = [*given.shape[:dim], high - low, *given.shape[dim + 1 :]]

    def inside(box: Box) -> Box:
        first, last = intersect(box[dim], (low, high))
        cut = (first - low, last - low) if first < last else (0, 0)
        return (*box[:dim], cut, *box[dim + 1 :])

    placed = _map(given, whole, inside)
    first, last = intersect(given.box[dim], (low, high))
    start = min(first - given.box[dim][0], given._local.shape[dim])
    return wrap(given._local.narrow(dim, max(0, start), last - first), placed)


def _strided(given: PartitionedTensor, dim: int, low: int, high: int, step: int) -> Any:
    """Every `step`-th index of an interval."""

    def index(end: int) -> int:  # how many taken indices are before `end`
        return max(0, -(-(min(end, high) - low) // step))

    whole = [*given.shape[:dim], index(high), *given.shape[dim + 1 :]]

    def inside(box: Box) -> Box:
        return (*box[:dim], (index(box[dim][0]), index(box[dim][1])), *box[dim + 1 :])

    placed = _map(given, whole, inside)
    taken = placed.box[dim]
    start = low + taken[0] * step - given.box[dim][0]
    picks = [slice(None)] * given.dim()
    stop = start + (taken[1] - taken[0]) * step
    picks[dim] = slice(start, stop, step) if taken[0] < taken[1] else slice(0, 0)
    return wrap(given._local[tuple(picks)], placed)


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
    one = unsqueeze(None, (gradient, dim), {})
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
    placed = _map(given, whole, grown)
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


def select(func: Any, args: Any, kwargs: Any) -> Any:
    """`select`: one index of a dimension; ranks without it hold nothing.

    A single word cannot be held by some ranks: it moves to all.
    """
    given, dim, index = args
    dim, index = dim % given.dim(), index % given.shape[dim]
    if given.dim() == 1 and not given._partition.replicated:
        placed = given._partition.uncut_along([dim])
        given = PartitionedTensor(to_partition(given, placed), placed)
    return _without(_interval(given, dim, index, index + 1), {dim})


def split(func: Any, args: Any, kwargs: Any) -> Any:
    """`split`, `split_with_sizes`, `unbind`: parts along one dimension."""
    given = args[0]
    names = [each.name for each in func._schema.arguments]
    dim = argument(func, args, kwargs, "dim") if "dim" in names else 0
    dim %= given.dim()
    extent = given.shape[dim]
    if func._schema.name == "aten::unbind":
        aten = torch.ops.aten.select.int
        return [select(aten, (given, dim, index), {}) for index in range(extent)]
    sizes = args[1]
    if isinstance(sizes, int):
        sizes = [min(sizes, extent - low) for low in range(0, extent, sizes)]
    ends = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    return [_interval(given, dim, low, high) for low, high in pairwise(ends)]


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

    placed = _map(given, empty.shape, without)
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
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "slice": sliced,
    "select": select,
    **dict.fromkeys(("split", "split_with_sizes", "unbind"), split),
    "expand": expand,
    "diagonal": diagonal,
    "cat": cat,
    "stack": stack,
    "slice_backward": unsliced,
    "select_backward": unselected,
}
