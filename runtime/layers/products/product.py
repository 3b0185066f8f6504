"""Products of matrices and the like, which ranks divide along the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import Box, cut, overlap, shape, volume
from synth.runtime.layers.products.read_whole import SharedGather
from synth.runtime.layers.steps.held import is_trainable
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import Step

Dims = tuple[int | None, ...]


class ProductStep(Step):
    """Every rank computes a box of the result from the slices that belong to it.

    call: takes all operands. sources: the layouts of the operands that are computed;
    None for a parameter. dims: of each operand, see `wanted`. places: of each operand
    among the arguments of `forward`, or among the parameters of `module`.
    layout: of the result, see `best_layout`. dtype: of the result.
    gather: what some operands were computed from, whose words count here.
    """

    gather: SharedGather | None = None

    def __init__(
        self,
        call: Callable[..., torch.Tensor],
        sources: Sequence[Layout | None],
        dims: Sequence[Dims],
        places: Sequence[int],
        layout: Layout,
        dtype: torch.dtype,
        count: Count,
        module: ReplicatedParams | None = None,
    ) -> None:
        super().__init__()
        self.call, self.places, self.layout = call, tuple(places), layout
        self.dtype, self.count, self.module = dtype, count, module
        self.moves = [
            None if source is None else (source, wanted(layout, source.whole, each))
            for source, each in zip(sources, dims, strict=True)
        ]

    def forward(self, *shards: torch.Tensor) -> torch.Tensor:
        """The own box of the result."""
        params = [] if self.module is None else self.module.all()
        here = []
        for place, move in zip(self.places, self.moves, strict=True):
            if move is None:
                here.append(params[place])
            else:
                here.append(redistribute(shards[place], *move, self.count))
        size = shape(self.layout.mine)
        if math.prod(size):
            result: torch.Tensor = self.call(*here)
            return result.contiguous()
        empty = torch.zeros(size, dtype=self.dtype, device=here[0].device)
        # gradients return from every rank, also where there are no words
        floats = [each.sum() for each in here if is_trainable(each)]
        if not floats:
            return empty
        return empty + (torch.stack(floats).sum() * 0).to(self.dtype)

    def exchanges(self) -> list[Exchange]:
        """The slices of the operands that belong to the own box."""
        found = super().exchanges()
        found += [] if self.gather is None else self.gather.exchanges()
        for place, move in zip(self.places, self.moves, strict=True):
            if move is not None:
                found += moved(*move, place)
        return found


def wanted(result: Layout, whole: Sequence[int], dims: Dims) -> Layout:
    """What every rank reads of an operand.

    dims: for each dimension of the operand that of the result; None: it is read whole.
    A rank without words of the result reads none.
    """
    boxes = []
    for box in result.boxes:
        pairs = zip(dims, whole, strict=True)
        read = tuple((0, n) if dim is None else box[dim] for dim, n in pairs)
        boxes.append(read if volume(box) else tuple((0, 0) for _ in whole))
    return result.with_boxes(whole, boxes)


def best_layout(
    out: Sequence[int],
    sources: Sequence[tuple[Layout, Dims]],
    divided: Sequence[int],
) -> Layout:
    """The layout of a result with the least work per rank, then the fewest words moved.

    out: the result's shape. sources: the layouts of computed operands, with their
    dimensions in the result. divided: dimensions of the result that may be cut.
    """
    tried = list(_candidates(tuple(out), sources, tuple(divided)))
    return min(tried, key=lambda layout: (_work(layout), _moved(layout, sources)))


def _candidates(
    out: tuple[int, ...],
    sources: Sequence[tuple[Layout, Dims]],
    divided: tuple[int, ...],
) -> Iterator[Layout]:
    """Layouts in which an operand stays, and grids over the dimensions."""
    first = sources[0][0]
    frame = tuple((0, extent) for extent in out)
    for source, dims in sources:
        whole = tuple((0, extent) for extent in source.whole)
        cut_dims = {
            dim
            for box in source.boxes
            if volume(box)
            for dim, each in enumerate(box)
            if each != whole[dim]
        }
        if all(dims[dim] in divided for dim in cut_dims):
            places = {dims[dim]: dim for dim in cut_dims}
            boxes = [
                tuple(
                    box[places[dim]] if dim in places else frame[dim]
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


def _work(layout: Layout) -> int:
    """Words of the largest box."""
    return max(volume(box) for box in layout.boxes)


def _moved(layout: Layout, sources: Sequence[tuple[Layout, Dims]]) -> int:
    """Words that ranks read and do not have."""
    total = 0
    for source, dims in sources:
        reads = wanted(layout, source.whole, dims)
        pairs = zip(reads.boxes, source.boxes, strict=True)
        total += sum(volume(one) - volume(overlap(one, other)) for one, other in pairs)
    return total
