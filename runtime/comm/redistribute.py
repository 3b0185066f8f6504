"""Differentiable redistribution of activations from one layout to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from synth.runtime.comm.halo_exchange import Neighbours, fetch_rows, return_rows
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype

Count = Callable[[int], None]  # is called with received words


def _uncounted(words: int) -> None:
    """Count nothing."""


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
    ranks = source.ranks
    peers = [{"rank": index} for index in range(ranks.size)]
    at, grid = {"rank": ranks.me}, {"rank": ranks.size}
    neighbours = Neighbours(at, peers, grid, count, ranks.group)
    return exchange(values, source.box, target.box, neighbours)


def fetch_boxes(
    values: torch.Tensor, source: Layout, target: Layout, count: Count = _uncounted
) -> torch.Tensor:
    """`redistribute` without autograd."""
    if values.dtype == torch.bool:  # which gloo does not send
        bits = fetch_boxes(values.view(torch.uint8), source, target, count)
        return bits.view(torch.bool)
    return _exchanged(fetch_rows, values, source, target, count)


def add_boxes(
    partial: torch.Tensor, held: Layout, owned: Layout, count: Count = _uncounted
) -> torch.Tensor:
    """`sum_to_owners` without autograd."""
    return _exchanged(return_rows, partial, held, owned, count)


class Redistribute(torch.autograd.Function):
    """From owned boxes to wanted boxes; gradients travel back and are added."""

    @staticmethod
    def forward(
        ctx: Any, shard: torch.Tensor, source: Layout, target: Layout, count: Count
    ) -> torch.Tensor:
        """The words of the target's box."""
        ctx.place = source, target, count
        return fetch_boxes(shard, source, target, count)

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
        contiguous = torch.contiguous_format
        total = gradient.to(sum_dtype(gradient.dtype), memory_format=contiguous)
        total = total.clone() if total is gradient else total
        dist.all_reduce(total, group=ctx.group)
        return total.to(gradient.dtype), None


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
