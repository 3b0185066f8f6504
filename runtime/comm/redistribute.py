"""Layouts of activations, and differentiable redistribution from one to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from synth.runtime.comm.halo_exchange import Neighbours, fetch_rows, return_rows
from synth.runtime.grid.boxes import Box, cut, overlap, shape, volume, within
from synth.runtime.grid.process_grid import At

Count = Callable[[int], None]  # is called with received words


class Layout(NamedTuple):
    """The shape of a whole tensor and the box of every rank."""

    whole: tuple[int, ...]
    boxes: tuple[Box, ...]

    @property
    def mine(self) -> Box:
        """The box of this rank."""
        return self.boxes[dist.get_rank()]

    def box(self, at: At) -> Box:
        """The box of the rank `at["rank"]`, as `fetch_rows` asks for it."""
        return self.boxes[at["rank"]]


# -- layouts ---------------------------------------------------------------------------


def replicated(whole: Sequence[int]) -> Layout:
    """Every rank holds the whole tensor."""
    frame = tuple((0, extent) for extent in whole)
    return Layout(tuple(whole), (frame,) * dist.get_world_size())


def even(whole: Sequence[int]) -> Layout:
    """Dimension 0 is cut over as many ranks as possible, dimension 1 over the others.

    Parts are empty where there are fewer words than ranks. A scalar cannot be cut: all
    ranks have it, each with a part of its gradient.
    """
    if not whole:
        return replicated(whole)
    ranks = dist.get_world_size()
    first = max(d for d in range(1, ranks + 1) if ranks % d == 0 and d <= whole[0])
    first = ranks if len(whole) == 1 else first
    boxes = []
    for rank in range(ranks):
        box = [(0, extent) for extent in whole]
        box[0] = cut(box[0], first, rank // (ranks // first))
        if len(whole) > 1:
            box[1] = cut(box[1], ranks // first, rank % (ranks // first))
        boxes.append(tuple(box))
    return Layout(tuple(whole), tuple(boxes))


def disjoint(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes are equal or share no word."""
    kinds = list(dict.fromkeys(boxes))
    return all(
        volume(overlap(one, other)) == 0
        for i, one in enumerate(kinds)
        for other in kinds[:i]
    )


def split_copies(held: Layout) -> Layout:
    """One owner for each word: ranks with equal boxes cut them along the longest dim.

    Boxes that are not equal must be disjoint.
    """
    boxes = []
    for rank, box in enumerate(held.boxes):
        peers = [peer for peer, other in enumerate(held.boxes) if other == box]
        sizes = shape(box)
        dim = sizes.index(max(sizes))
        part = cut(box[dim], len(peers), peers.index(rank))
        boxes.append((*box[:dim], part, *box[dim + 1 :]))
    return Layout(held.whole, tuple(boxes))


def one_owner(held: Layout) -> Layout:
    """A layout with one owner for each word, a rank that holds the word if possible."""
    if not held.whole:  # a scalar cannot be cut: all ranks own it
        return held
    return split_copies(held) if disjoint(held.boxes) else even(held.whole)


def broadcast_layout(base: Layout, whole: Sequence[int]) -> Layout:
    """What every rank needs of an operand to combine it with its box of `base`.

    Dimensions align at the last one, as torch broadcasts. All ranks hold the dimensions
    of extent 1.
    """
    if tuple(whole) == base.whole:
        return base
    skip = len(base.whole) - len(whole)
    boxes = tuple(
        tuple(
            (0, 1) if extent == 1 else interval
            for extent, interval in zip(whole, box[skip:], strict=True)
        )
        for box in base.boxes
    )
    return Layout(tuple(whole), boxes)


# -- redistribution --------------------------------------------------------------------


def redistribute(
    shard: torch.Tensor, source: Layout, target: Layout, count: Count
) -> torch.Tensor:
    """The words of `target` from the ranks that own them; differentiable.

    Every word has one owner in `source`. Several ranks may want it in `target`; the
    owner gets the sum of their gradients.
    """
    if source.boxes == target.boxes:
        return shard
    moved: torch.Tensor = Redistribute.apply(shard, source, target, count)  # type: ignore[no-untyped-call]
    return moved


def sum_to_owners(
    partial: torch.Tensor, held: Layout, owned: Layout, count: Count
) -> torch.Tensor:
    """Add the partial sums of each word at its owner; the adjoint of `redistribute`."""
    if held.boxes == owned.boxes:
        return partial
    summed: torch.Tensor = SumToOwners.apply(partial, held, owned, count)  # type: ignore[no-untyped-call]
    return summed


def _exchanged(
    exchange: Callable[..., torch.Tensor],
    values: torch.Tensor,
    source: Layout,
    target: Layout,
    count: Count,
) -> torch.Tensor:
    ranks = dist.get_world_size()
    peers = [{"rank": rank} for rank in range(ranks)]
    at, grid = {"rank": dist.get_rank()}, {"rank": ranks}
    neighbours = Neighbours(at, peers, grid, count)
    return exchange(values, source.box, target.box, neighbours)


class Redistribute(torch.autograd.Function):
    """From owned boxes to wanted boxes; gradients travel back and are added."""

    @staticmethod
    def forward(
        ctx: Any, shard: torch.Tensor, source: Layout, target: Layout, count: Count
    ) -> torch.Tensor:
        """The words of the target's box."""
        ctx.place = source, target, count
        return _exchanged(fetch_rows, shard, source, target, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The sum of the gradients of all copies."""
        source, target, count = ctx.place
        shard = _exchanged(return_rows, gradient, target, source, count)
        return shard, None, None, None


class SumToOwners(torch.autograd.Function):
    """Partial sums to the owner of each word; its gradient to all that held one."""

    @staticmethod
    def forward(
        ctx: Any, partial: torch.Tensor, held: Layout, owned: Layout, count: Count
    ) -> torch.Tensor:
        """The sums of the owned words."""
        ctx.place = held, owned, count
        return _exchanged(return_rows, partial, held, owned, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The gradient of every word, on each rank that held a partial sum of it."""
        held, owned, count = ctx.place
        partial = _exchanged(fetch_rows, gradient, owned, held, count)
        return partial, None, None, None


class GatherWhole(torch.autograd.Function):
    """The whole tensor on every rank, for what all ranks then compute alike."""

    @staticmethod
    def forward(
        ctx: Any, shard: torch.Tensor, source: Layout, count: Count
    ) -> torch.Tensor:
        """All words."""
        ctx.source = source
        target = replicated(source.whole)
        return _exchanged(fetch_rows, shard, source, target, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The own part of the gradient, which is the same on every rank."""
        frame = replicated(ctx.source.whole).mine
        return gradient[within(ctx.source.mine, frame)].contiguous(), None, None


class SumGradient(torch.autograd.Function):
    """A replicated parameter: its gradient is all-reduced over a group."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        """The same values."""
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The sum over the ranks of the group."""
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumCopies(torch.autograd.Function):
    """Words that several ranks hold alike: the gradient is the sum over the copies."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, held: Layout, owned: Layout, count: Count
    ) -> torch.Tensor:
        """The same values."""
        ctx.place = held, owned, count
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Sums at the owners, sent to every rank that holds the word."""
        held, owned, count = ctx.place
        total = _exchanged(return_rows, gradient, held, owned, count)
        return _exchanged(fetch_rows, total, owned, held, count), None, None, None
