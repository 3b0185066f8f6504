"""Differentiable redistribution of activations from one layout to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from synth.runtime.comm.adjoint import Linear, same, with_adjoint
from synth.runtime.comm.halo_exchange import Neighbours, fetch_rows, return_rows
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.messages import all_reduce
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.grid.spans import waiting

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
    fetch, add = _adjoints(source, target, count)
    return with_adjoint(shard, fetch, add)


def sum_copies(
    values: torch.Tensor, held: Layout, owned: Layout, count: Count
) -> torch.Tensor:
    """Words that several ranks hold alike: the gradient is the sum over the copies.

    It is added at the owners, and sent to every rank that holds the word.
    """
    fetch, add = _adjoints(owned, held, count)
    return with_adjoint(values, same, lambda gradient: fetch(add(gradient)))


def sum_gradient(values: torch.Tensor, group: Any) -> torch.Tensor:
    """A replicated parameter: its gradient is all-reduced over a group."""

    def over_ranks(gradient: torch.Tensor) -> torch.Tensor:
        contiguous = torch.contiguous_format
        total = in_memory(gradient)
        total = total.to(sum_dtype(gradient.dtype), memory_format=contiguous)
        total = total.clone() if total is gradient else total
        with waiting("wait for a sum"):
            all_reduce(total, group).wait()
        return total.to(gradient.dtype)

    return with_adjoint(values, same, over_ranks)


def _adjoints(owned: Layout, held: Layout, count: Count) -> tuple[Linear, Linear]:
    """Fetch the held words from their owners, and its adjoint: add them there."""
    return (
        lambda values: fetch_boxes(values, owned, held, count),
        lambda parts: add_boxes(parts, held, owned, count),
    )


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
    return exchange(in_memory(values), source.box, target.box, neighbours)


def in_memory(values: torch.Tensor) -> torch.Tensor:
    """The same words as they are sent.

    torch notes of some tensors only that they are conjugated, negated, or zero, such as
    the gradient of `torch.sgn`, or which words are not zero: that of `sparse=True`.
    """
    if values.layout != torch.strided:
        return values.to_dense()
    if values._is_zerotensor():
        return values.clone()
    return values.resolve_conj().resolve_neg()


def fetch_boxes(
    values: torch.Tensor, source: Layout, target: Layout, count: Count = _uncounted
) -> torch.Tensor:
    """`redistribute` without autograd."""
    return _exchanged(fetch_rows, values, source, target, count)


def add_boxes(
    partial: torch.Tensor, held: Layout, owned: Layout, count: Count = _uncounted
) -> torch.Tensor:
    """Partial sums of each word, added at its owner; the adjoint of `fetch_boxes`."""
    return _exchanged(return_rows, partial, held, owned, count)
