"""Products of matrices and the like, which ranks divide along the result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import (
    Box,
    cut,
    first_rows,
    overlap,
    shape,
    volume,
)
from synth.runtime.rules.access import Access, Rows, Same, Single, Whole, read_box
from synth.runtime.rules.rule import (
    LocalCall,
    Operand,
    Rule,
    needed,
    type_of,
    where_words,
)

# of each dimension of an operand that of the result; None: it is read whole; or how
Dims = tuple[int | Access | None, ...]
EVEN = 1.25  # times the least work, for fewer words


class Factor(NamedTuple):
    """An operand of a product.

    place: among the arguments that are computed, or among the parameters. whole: its
    shape. source: where it lies; None for a parameter.
    """

    place: int
    whole: tuple[int, ...]
    source: Layout | None
    dims: Dims


def product(
    on_box: Callable[[Box], LocalCall], out: Layout, operands: Sequence[Factor]
) -> Rule:
    """Every rank computes a box of the result from the slices that belong to it.

    on_box: makes of a box what takes the slices of all operands. out: see
    `best_layout`.
    """
    computed = [each for each in operands if each.source is not None]
    fresh, order = itertools.count(), list[int]()
    for each in operands:
        here = each.source is not None
        order.append(next(fresh) if here else len(computed) + each.place)

    def on(box: Box) -> LocalCall:
        call = on_box(box)

        def local(*given: torch.Tensor) -> torch.Tensor:
            return call(*(given[each] for each in order)).contiguous()

        return local

    word = ((0, 1),) * len(out.whole)
    shapes = [
        shape(read_box(accesses(each.whole, each.dims), word)) for each in operands
    ]
    given = [shapes[order.index(place)] for place in range(len(operands))]
    moved = tuple(
        Operand(each.source, wanted(out, each.whole, each.dims), each.place)
        for each in computed
        if each.source is not None
    )
    return Rule(out, moved, where_words(on(out.mine), out, type_of(on(word), given)))


def accesses(whole: Sequence[int], dims: Dims) -> tuple[Access, ...]:
    """What is read of an operand along each of its dimensions."""
    pairs = zip(dims, whole, strict=True)
    return tuple(
        Whole(n) if dim is None else Same(dim) if isinstance(dim, int) else dim
        for dim, n in pairs
    )


def wanted(result: Layout, whole: Sequence[int], dims: Dims) -> Layout:
    """What every rank reads of an operand: nothing for an empty box of the result."""
    return needed(result, whole, accesses(whole, dims))


def best_layout(
    out: Sequence[int],
    sources: Sequence[tuple[Layout, Dims]],
    divided: Sequence[int],
) -> Layout:
    """The layout of a result that moves the fewest words with nearly the least work.

    The work is that of the busiest rank. Where extents are uneven, the least of all
    would have a long operand gathered to spare a row: 257 rows on 2 ranks, by channels.

    out: the result's shape. sources: the layouts of computed operands, with their
    dimensions in the result. divided: dimensions of the result that may be cut.
    """
    tried = list(_candidates(tuple(out), sources, tuple(divided)))
    most = EVEN * min(layout.most_words for layout in tried)
    even = [layout for layout in tried if layout.most_words <= most]
    return min(even, key=lambda layout: (_moved(layout, sources), layout.most_words))


def _candidates(
    out: tuple[int, ...],
    sources: Sequence[tuple[Layout, Dims]],
    divided: tuple[int, ...],
) -> Iterator[Layout]:
    """Layouts in which an operand stays, and grids over the dimensions."""
    first = sources[0][0]
    frame = tuple((0, extent) for extent in out)
    for source, dims in sources:
        if 0 in source.whole:  # the result has words all the same
            continue
        whole = tuple((0, extent) for extent in source.whole)
        cut_dims = {
            dim
            for box in source.boxes
            if volume(box)
            for dim, each in enumerate(box)
            if each != whole[dim]
        }
        places = {_dim_of(dims[dim]): dim for dim in cut_dims}
        if len(places) == len(cut_dims) and places.keys() <= {*divided}:
            boxes = [
                tuple(
                    first_rows(box[places[dim]], whole[places[dim]][1], out[dim])
                    if dim in places
                    else frame[dim]
                    for dim in range(len(out))
                )
                if volume(box)
                else tuple((0, 0) for _ in out)
                for box in source.boxes
            ]
            yield source.with_boxes(out, boxes)
    orders = [divided, (*divided[:-2], *divided[:-3:-1]), divided[::-1]]
    for order in dict.fromkeys(orders):
        yield first.with_boxes(out, _grid(out, order, len(first.boxes)))


def _dim_of(access: int | Access | None) -> int | None:
    """The dimension of the result along which a cut operand may stay; None for none."""
    if isinstance(access, int | None):
        return access
    return None if isinstance(access, Whole | Single | Rows) else access.dim


def _grid(out: tuple[int, ...], order: Sequence[int], ranks: int) -> list[Box]:
    """Boxes that are cut along dimensions in an order, over as many ranks as can be."""
    parts, left = dict[int, int](), ranks
    for dim in order:
        parts[dim] = max(
            n for n in range(1, left + 1) if left % n == 0 and n <= max(out[dim], 1)
        )
        left //= parts[dim]
    if left > 1 and order:  # more ranks than extents: the longest is cut further
        longest = max(order, key=lambda dim: out[dim] / parts[dim])
        parts[longest] *= left
    boxes = []
    for rank in range(ranks):
        box, rest = [(0, extent) for extent in out], rank
        for dim, number in parts.items():
            box[dim] = cut(box[dim], number, rest % number)
            rest //= number
        boxes.append(tuple(box) if not rest else tuple((0, 0) for _ in out))
    return boxes


def _moved(layout: Layout, sources: Sequence[tuple[Layout, Dims]]) -> int:
    """Words that ranks read and do not have."""
    total = 0
    for source, dims in sources:
        reads = wanted(layout, source.whole, dims)
        pairs = zip(reads.boxes, source.boxes, strict=True)
        total += sum(volume(one) - volume(overlap(one, other)) for one, other in pairs)
    return total
