"""Who holds which box of an activation; differentiable moves from one to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from synth.runtime.comm.halo_exchange import fetch_rows, return_rows
from synth.runtime.grid.boxes import Box, cut, overlap, shape, volume, within
from synth.runtime.grid.process_grid import At, Neighbours

Count = Callable[[int], None]


class Layout(NamedTuple):
    """The extents of a whole tensor and the box of every rank."""

    whole: tuple[int, ...]
    boxes: tuple[Box, ...]

    @property
    def mine(self) -> Box:
        """The box of this rank."""
        return self.boxes[dist.get_rank()]

    def box(self, at: At) -> Box:
        """The box of a rank, as `fetch_rows` asks for it."""
        return self.boxes[at["rank"]]


def everywhere(whole: Sequence[int]) -> Layout:
    """All ranks hold all."""
    frame = tuple((0, extent) for extent in whole)
    return Layout(tuple(whole), (frame,) * dist.get_world_size())


def even(whole: Sequence[int]) -> Layout:
    """Samples are cut over as many ranks as go, the second dimension over the others.

    Parts are empty where there are fewer words than ranks. A single number cannot be
    cut: all ranks have it, each with a part of its gradient.
    """
    if not whole:
        return everywhere(whole)
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


def apart(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes are equal or share no word."""
    kinds = list(dict.fromkeys(boxes))
    return all(
        volume(overlap(one, other)) == 0
        for i, one in enumerate(kinds)
        for other in kinds[:i]
    )


def dealt(held: Layout) -> Layout:
    """Each word that several ranks hold gets one owner among them.

    Ranks that hold equal boxes cut them along the longest dimension; see `apart`.
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
    """An owner for each word that several ranks may hold, one of them where it goes."""
    if not held.whole:  # a single number cannot be cut: all of them
        return held
    return dealt(held) if apart(held.boxes) else even(held.whole)


def broadcast(base: Layout, whole: Sequence[int]) -> Layout:
    """What every rank needs of an operand to combine it with its box of `base`.

    Dimensions count from the last one, as torch broadcasts; those of extent 1 are held
    by all.
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


def move(
    share: torch.Tensor, source: Layout, target: Layout, count: Count
) -> torch.Tensor:
    """The words of `target` from the ranks that own them; its gradient is sent back.

    Every word has one owner in `source`; in `target` several ranks may want it, and the
    owner gets the sum of their gradients.
    """
    if source.boxes == target.boxes:
        return share
    moved: torch.Tensor = Move.apply(share, source, target, count)  # type: ignore[no-untyped-call]
    return moved


def collect(
    share: torch.Tensor, held: Layout, owned: Layout, count: Count
) -> torch.Tensor:
    """Sum what several ranks hold of a word at its one owner; the adjoint of `move`."""
    if held.boxes == owned.boxes:
        return share
    summed: torch.Tensor = Collect.apply(share, held, owned, count)  # type: ignore[no-untyped-call]
    return summed


def _sent(
    how: Callable[..., torch.Tensor],
    share: torch.Tensor,
    source: Layout,
    target: Layout,
    count: Count,
) -> torch.Tensor:
    ranks = dist.get_world_size()
    peers = [{"rank": rank} for rank in range(ranks)]
    at, grid = {"rank": dist.get_rank()}, {"rank": ranks}
    return how(share, source.box, target.box, Neighbours(at, peers, grid, count))


class Move(torch.autograd.Function):
    """Owned boxes to wanted ones, and gradients back."""

    @staticmethod
    def forward(
        ctx: Any, share: torch.Tensor, source: Layout, target: Layout, count: Count
    ) -> torch.Tensor:
        """The words of the target's box."""
        ctx.place = source, target, count
        return _sent(fetch_rows, share, source, target, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Sums of the gradients of all copies."""
        source, target, count = ctx.place
        return _sent(return_rows, gradient, target, source, count), None, None, None


class Collect(torch.autograd.Function):
    """Partial sums to their owner, and its gradient to all that held one."""

    @staticmethod
    def forward(
        ctx: Any, share: torch.Tensor, held: Layout, owned: Layout, count: Count
    ) -> torch.Tensor:
        """The sums of the words owned."""
        ctx.place = held, owned, count
        return _sent(return_rows, share, held, owned, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The gradient of every word to each rank that held a part of it."""
        held, owned, count = ctx.place
        return _sent(fetch_rows, gradient, owned, held, count), None, None, None


class Whole(torch.autograd.Function):
    """The whole on every rank, for what all of them compute alike from it."""

    @staticmethod
    def forward(
        ctx: Any, share: torch.Tensor, source: Layout, count: Count
    ) -> torch.Tensor:
        """All words."""
        ctx.source = source
        return _sent(fetch_rows, share, source, everywhere(source.whole), count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The own part of a gradient that every rank has alike."""
        frame = everywhere(ctx.source.whole).mine
        return gradient[within(ctx.source.mine, frame)].contiguous(), None, None


class SumBack(torch.autograd.Function):
    """A parameter that several ranks hold alike: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        """The same values."""
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Summed over the ranks of the group."""
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Agree(torch.autograd.Function):
    """Words that several ranks hold alike: their gradient is the sum of all theirs."""

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
        """Summed at the owners and sent to all that hold the words."""
        held, owned, count = ctx.place
        total = _sent(return_rows, gradient, held, owned, count)
        return _sent(fetch_rows, total, owned, held, count), None, None, None
