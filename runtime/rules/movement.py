"""Operators that move words and compute nothing: each reads the rows of its result.

Along each dimension an output row reads one input row, or a constant. The owner of an
input row owns the output rows that have their home there, so that few rows move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.grid.boxes import (
    Box,
    first_rows,
    shape,
    volume,
    with_interval,
)
from synth.runtime.grid.row_maps import (
    CONSTANT,
    RowMap,
    owned_rows,
    read_rows,
    rows_read,
)
from synth.runtime.rules.access import Rows, Same
from synth.runtime.rules.pointwise import base_of
from synth.runtime.rules.rule import Operand, Rule, pulled


def reindexed(
    source: Layout,
    maps: Sequence[RowMap],
    value: float = 0.0,
    dims: Sequence[int | None] | None = None,
    out: Layout | None = None,
) -> Rule:
    """Every row is a row of the input, or a constant.

    maps: of every dimension of the input. value: of the rows that read nothing.
    dims: of the result, each the dimension of the input that it is; None for a new one
        of extent 1. Dimensions of which one row remains may be left out. out: where the
        result lies; None where the rows are that it reads.
    """
    places = list(range(len(maps)) if dims is None else dims)
    if out is None:
        kept = (tuple(map(owned_rows, maps, box)) for box in source.boxes)
        out = source.with_boxes([len(each.rows) for each in maps], kept)
        out = out if dims is None else with_dims(out, dims)
    at = [places.index(dim) if dim in places else None for dim in range(len(maps))]
    reads = tuple(map(Rows, at, maps))
    call = _Picked([_Dim.of(each, out) for each in reads], shape(out.mine), value)
    return Rule(out, (pulled(source, reads, out),), call)


def from_own_boxes(
    source: Layout,
    maps: Sequence[RowMap],
    value: float,
    dims_of: Sequence[int | None] | None = None,
) -> Rule:
    """The same of ranks that have all rows along each dimension whose rows move.

    Boxes of several ranks may have the same words; none move. dims_of: as `dims` above.
    """
    kept = (tuple(map(owned_rows, maps, box)) for box in source.boxes)
    out = source.with_boxes([len(each.rows) for each in maps], kept)
    out = out if dims_of is None else with_dims(out, dims_of)
    slices, dims = list[slice](), list[_Dim]()
    for each in maps:
        rows = each.rows
        if isinstance(rows, range) and rows.step > 0:
            part = (
                slice(None) if each.plain else slice(rows.start, rows.stop, rows.step)
            )
            slices.append(part)
            dims.append(_Dim(0, None, 0, len(rows)))
            continue
        first, last = read_rows(rows)
        slices.append(slice(None))
        dims.append(_Dim(first, tuple(rows[first:last]), len(rows) - last, each.size))
    call, taken = _Picked(dims, shape(out.mine), value), tuple(slices)
    return Rule(out, (Operand(source, source),), lambda shard: call(shard[taken]))


class _Dim(NamedTuple):
    """What becomes of the rows that are read along a dimension of the operand.

    before, after: how many constant rows are added. order: of the rows between; None
    where they are in order. rows: how many are read.
    """

    before: int
    order: tuple[int, ...] | None
    after: int
    rows: int

    @classmethod
    def of(cls, access: Rows, out: Layout) -> _Dim:
        """Of the own rows of a result."""
        own = (0, 1) if access.dim is None else out.mine[access.dim]
        rows = rows_read(access.row_map, own)
        read = access.row_map.rows[slice(*own)]
        if isinstance(read, range) and read.step > 0:
            return cls(0, None, 0, len(rows))
        first, last = read_rows(read)
        place = {row: index for index, row in enumerate(rows)}
        order = tuple(place[row] for row in read[first:last] if row != CONSTANT)
        plain = order == tuple(range(len(rows)))
        return cls(first, None if plain else order, len(read) - last, len(rows))


class _Picked:
    """The own box of a result, from the rows that it reads."""

    def __init__(
        self, dims: Sequence[_Dim], own: tuple[int, ...], value: float
    ) -> None:
        self.dims, self.own, self.value = tuple(dims), own, value
        self.repeats = any(len(each.order or ()) > each.rows for each in dims)

    def __call__(self, shard: torch.Tensor) -> torch.Tensor:
        dtype = shard.dtype
        if self.repeats and shard.requires_grad and torch.is_grad_enabled():
            shard = shard.to(sum_dtype(dtype))  # its gradients are sums
        if not all(shard.shape):  # nothing is read here
            made = shard.new_full(self.own, self.value) + shard.sum() * 0
            return made.to(dtype)
        zeros: list[int] = []
        for dim, each in enumerate(self.dims):
            if each.order is not None:
                at = torch.tensor(each.order, dtype=torch.int64, device=shard.device)
                shard = shard.index_select(dim, at)
            zeros = [each.before, each.after, *zeros]
        if any(zeros):
            shard = functional.pad(shard, zeros, value=self.value)
        return shard.to(dtype).reshape(self.own)


def with_dims(layout: Layout, dims: Sequence[int | None]) -> Layout:
    """A layout with dimensions of extent 1 left out or added.

    A box without words stays one.
    """
    boxes = []
    for box in layout.boxes:
        made = [(0, 1) if dim is None else box[dim] for dim in dims]
        if not volume(box):
            made = [(low, low) for low, _ in made]
        boxes.append(tuple(made))
    whole = [1 if dim is None else layout.whole[dim] for dim in dims]
    return layout.with_boxes(whole, boxes)


def order_of(permutes: Callable[[torch.Tensor], torch.Tensor], dims: int) -> list[int]:
    """The order of dimensions that a function makes."""
    extents = range(1, dims + 1)  # each tells the dimension that it was
    moved = permutes(torch.empty(tuple(extents), device="meta"))
    return [extent - 1 for extent in moved.shape]


def permuted(source: Layout, order: Sequence[int]) -> Rule:
    """Dimensions in another order; no words move."""
    back = [list(order).index(dim) for dim in range(len(order))]
    out = in_order(source, order)
    operand = pulled(source, tuple(map(Same, back)), out)
    return Rule(out, (operand,), lambda shard: shard.permute(order))


def in_order(layout: Layout, order: Sequence[int]) -> Layout:
    """The same words with their dimensions in another order."""
    whole = tuple(layout.whole[dim] for dim in order)
    boxes = (tuple(box[dim] for dim in order) for box in layout.boxes)
    return layout.with_boxes(whole, boxes)


def joined(
    sources: Sequence[Layout],
    dim: int,
    places: Sequence[int],
    wanted: Layout | None = None,
) -> Rule:
    """Tensors concatenated along a dimension.

    places: of each part among the arguments. wanted: the layout of the result. By
    default a rank holds its box of the first part along the other dimensions, and along
    `dim` the same fraction of the whole. If the first part is not cut along `dim`, no
    words of it move.
    """
    out = wanted or like_part(sources, 0, dim)
    operands = list[Operand]()
    start = 0
    for source, place in zip(sources, places, strict=True):
        reads = [Same(each) for each in range(len(out.whole))]
        reads[dim] = Same(dim, start, source.whole[dim])
        operands.append(pulled(source, reads, out, place))
        start += source.whole[dim]
    return Rule(out, tuple(operands), lambda *parts: torch.cat(parts, dim))


def best_joined(
    layouts: Sequence[Layout], dim: int, place: int | None = None
) -> Layout:
    """That of one part, scaled to all; or all words stay, if this shares them better.

    place: of the part; None for the largest. Parts on ranks of their own, such as faces
    of a sphere, stay when they are stacked. A strip beside a face moves to it: words
    stay only if no rank has more than half of what one would have else.
    """
    place = base_of([layout.whole for layout in layouts], place)
    like, stay = like_part(layouts, place, dim), staying(layouts, dim)
    if stay is not None and 2 * stay.most_words <= like.most_words:
        return stay
    return like


def staying(layouts: Sequence[Layout], dim: int) -> Layout | None:
    """The layout in which all words of the parts stay; None where these are no boxes.

    Each word has one owner, such as the faces of a sphere that are computed by ranks of
    their own and then stacked.
    """
    total = sum(layout.whole[dim] for layout in layouts)
    whole = (*layouts[0].whole[:dim], total, *layouts[0].whole[dim + 1 :])
    boxes = list[Box]()
    for rank in range(len(layouts[0].boxes)):
        start, joined = 0, list[Box]()
        for layout in layouts:
            box = layout.boxes[rank]
            if volume(box):
                low, high = box[dim]
                joined.append(with_interval(box, dim, (start + low, start + high)))
            start += layout.whole[dim]
        ends = pairwise(joined)
        follow = all(one[dim][1] == other[dim][0] for one, other in ends)
        if not follow or len({with_interval(each, dim, (0, 0)) for each in joined}) > 1:
            return None
        rows = (joined[0][dim][0], joined[-1][dim][1]) if joined else (0, 0)
        boxes.append(
            with_interval(joined[0], dim, rows) if joined else ((0, 0),) * len(whole)
        )
    if sum(map(volume, boxes)) != math.prod(whole):
        return None  # several ranks have one word
    return layouts[0].with_boxes(whole, boxes)


def like_part(layouts: Sequence[Layout], place: int, dim: int) -> Layout:
    """The layout of one part, scaled along a dimension to all parts.

    place: of the part. If it has no rows, it is the first one that has any.
    """
    order = [layouts[place], *layouts]
    part = next((each for each in order if each.whole[dim]), layouts[place])
    total = sum(layout.whole[dim] for layout in layouts)
    boxes = (
        with_interval(box, dim, first_rows(box[dim], max(1, part.whole[dim]), total))
        for box in part.boxes
    )
    whole = (*part.whole[:dim], total, *part.whole[dim + 1 :])
    return part.with_boxes(whole, boxes)
