"""Other shapes of a partitioned tensor: permuted, sliced, divided, shifted, joined.

Each is one of the rules of a model. In `view` and `reshape` no words move where boxes
of ranks stay boxes. Else they are cut along others first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul
from typing import Any, cast

import torch
from torch.nn import functional

from synth.runtime.comm.layout import Layout, replicated
from synth.runtime.grid.boxes import volume
from synth.runtime.rules.local_forms import (
    regrouped,
    reshape_form,
    whole_along,
    within_boxes,
)
from synth.runtime.rules.movement import (
    joined,
    like_part,
    order_of,
    permuted,
    reindexed,
)
from synth.runtime.rules.row_calls import FUNCTIONS as ROWS
from synth.runtime.rules.row_calls import pad_rows, rows_of
from synth.runtime.tensor.operations.operands import (
    NoParts,
    argument,
    by_rule,
    layout_of,
    short_name,
    to_partition,
    wrap,
)
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor


def permute(func: Any, args: Any, kwargs: Any) -> Any:
    """`permute`, `transpose` and `t`."""
    given = args[0]
    order = order_of(lambda each: func(each, *args[1:]), given.dim())
    return by_rule(func, given, lambda layout: permuted(layout, order))


def rows(func: Any, args: Any, kwargs: Any) -> Any:
    """Rows that are picked, moved or repeated, by the rule that models have for it.

    `split`, `unbind` and the like give several parts along one dimension.
    """
    if str(func._schema.returns[0].type) == "Tensor":
        return _part(func, args, kwargs, 0)
    parts = func(torch.empty(args[0].shape, device="meta"), *args[1:], **kwargs)
    return [_part(func, args, kwargs, part) for part in range(len(parts))]


def _part(func: Any, args: Any, kwargs: Any, part: int) -> Any:
    given = args[0]
    found = rows_of(short_name(func), given.shape, args[1:], kwargs, part)
    if found is None:
        raise NoParts
    lone = not found.shape and not given._partition.replicated
    if lone:  # some ranks cannot hold a word
        placed = Partition(replicated(given.shape, given._partition.ranks))
        given = PartitionedTensor(to_partition(given, placed), placed)
    made = by_rule(func, given, lambda layout: reindexed(layout, *found))
    if not found.shape and short_name(func) == "select":
        made.shown = _owned(args[0], args[2])
    return made


def _owned(row: PartitionedTensor, index: int) -> tuple[torch.Tensor, ...] | None:
    """A word of a row, in the memory of the tensor that the row was selected from.

    It is () on the ranks that do not hold it, and None if nobody can write into it.
    """
    given, at = row, [index % len(row)]
    while given.view_of is not None and short_name(given.view_of.call[0]) == "select":
        given, dim, chosen = given.view_of.call[1]
        at.insert(dim % given.dim(), chosen % given.shape[dim])
    if given.is_copy:
        return None
    held = given._partition.layout.whole  # which may divide dimensions of the shape
    steps, parts = (torch.empty(e, device="meta").stride() for e in (given.shape, held))
    word = sum(map(mul, at, steps))
    places = [word // step % extent for step, extent in zip(parts, held, strict=True)]
    pairs = list(zip(places, given._partition.box, strict=True))
    if not all(low <= place < high for place, (low, high) in pairs):
        return ()
    return (given._local[tuple(place - low for place, (low, _) in pairs)],)


def unsliced(func: Any, args: Any, kwargs: Any) -> Any:
    """`slice_backward`: the gradient of a slice among zeros."""
    gradient, whole, dim, first, _, step = args
    dim %= len(whole)
    if step > 1:  # zeros behind each row
        zeros = [0, 0] * (len(whole) - 1 - dim) + [0, step - 1]
        gradient = functional.pad(gradient.unsqueeze(dim + 1), zeros)
        gradient = gradient.flatten(dim, dim + 1)
    begin = slice(first, None).indices(whole[dim])[0]
    return _among_zeros(func, gradient, whole, dim, begin)


def unselected(func: Any, args: Any, kwargs: Any) -> Any:
    """`select_backward`: the gradient of one index among zeros."""
    gradient, whole, dim, index = args
    dim %= len(whole)
    one = gradient.unsqueeze(dim)
    return _among_zeros(func, one, whole, dim, index % whole[dim])


def _among_zeros(func: Any, given: Any, whole: Any, dim: int, begin: int) -> Any:
    """A tensor from some index of a dimension on; the rest of the extent is 0."""
    if not given.numel():
        raise NoParts
    rest = [0, 0] * (len(whole) - 1 - dim)
    after = whole[dim] - begin - given.shape[dim]
    found = pad_rows(given.shape, [*rest, begin, after], "constant", 0)
    return by_rule(func, given, lambda layout: reindexed(layout, *found))


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


def diagonal(func: Any, args: Any, kwargs: Any) -> Any:
    """`diagonal` of two dimensions, which are brought onto one rank."""
    given = args[0]
    offset, *dims = (
        argument(func, args, kwargs, n) for n in ("offset", "dim1", "dim2")
    )
    gone = [dim % given.dim() for dim in dims]
    after = torch.empty(given.shape, device="meta").diagonal(offset, *dims).shape
    kept = [dim for dim in range(given.dim()) if dim not in gone]
    form = whole_along(given.shape, gone, after, (*kept, gone[0]))

    def along(values: torch.Tensor) -> torch.Tensor:
        return values.diagonal(offset, *dims)

    return by_rule(func, given, lambda layout: within_boxes(layout, form, along))


def cat(func: Any, args: Any, kwargs: Any) -> Any:
    """`cat`, by the rule that models have for it; plain tensors are wholes."""
    parts = list(args[0])
    dim = argument(func, args, kwargs, "dim") % parts[0].dim()
    held = [isinstance(each, PartitionedTensor) for each in parts]
    first = held.index(True)
    ranks = parts[first]._partition.ranks
    layouts = [
        layout_of(each)
        if isinstance(each, PartitionedTensor)
        else replicated(each.shape, ranks)
        for each in parts
    ]
    wanted = like_part(layouts, first, dim)
    rule = joined(layouts, dim, range(len(parts)), wanted)
    places = [Partition(cast(Layout, operand.reads)) for operand in rule.operands]
    here = map(to_partition, parts, places)
    of = parts[first]._partition.of
    return wrap(rule.call(*here), Partition(rule.out, of=of))


def view(func: Any, args: Any, kwargs: Any) -> Any:
    """`view` and `reshape`: dimensions are joined and divided, but cut ones."""
    given, wanted = args[0], args[1]
    if isinstance(wanted, torch.dtype):
        if wanted.itemsize != given.dtype.itemsize:
            raise NoParts
        return wrap(given._local.view(wanted), given._partition)
    wanted = list(wanted)
    if -1 in wanted:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = given.numel() // rest if rest else 0
    if tuple(wanted) == tuple(given.shape):
        return wrap(given._local.view_as(given._local), given._partition)
    partition = given._partition
    layout = partition.layout
    if partition.refined:
        if tuple(wanted) != layout.whole:
            raise NoParts
        return wrap(
            given._local.view_as(given._local), Partition(layout, of=partition.of)
        )
    form = reshape_form(given.shape, wanted)
    joins = _joins_positions(given.shape, wanted)
    if joins and regrouped(layout, form) is None:
        place = Partition(layout, wanted, partition.of)
        return wrap(given._local.view_as(given._local), place)
    return by_rule(func, given, lambda held: within_boxes(held, form, lambda box: box))


def _joins_positions(before: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a view is that of torch's losses of classes, whose words stay in boxes.

    Scores (b, c, *spatial) become (b, c, 1, positions), targets (b, 1, positions).
    """
    kept = list(before[: len(wanted) - 2])
    return 3 <= len(wanted) <= 4 and [*kept, 1] == list(wanted[:-1])


RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), view),
    **dict.fromkeys(("permute", "transpose", "t"), permute),
    **dict.fromkeys(ROWS, rows),
    "expand": expand,
    "diagonal": diagonal,
    "cat": cat,
    "stack": stack,
    "slice_backward": unsliced,
    "select_backward": unselected,
}
