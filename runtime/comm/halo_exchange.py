"""Redistribution: every rank gets the words of a box that other ranks own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from synth.runtime.grid.boxes import Box, overlap, shape, volume, within
from synth.runtime.grid.process_grid import At, Neighbours, rank_of, through_host


def fetch_rows(
    own: torch.Tensor,
    owned: Callable[[At], Box],
    wanted: Callable[[At], Box],
    neighbours: Neighbours,
    around: Sequence[int] = (),
) -> torch.Tensor:
    """The words that this rank wants: those in `own` are copied, peers send the others.

    Both sides intersect the same intervals, so nobody has to ask. A halo is the case in
    which the rows wanted are a little more than those owned; it may be wider than the
    part of a neighbour, and nothing is assumed about strides or even parts.
    around: zeros to lay around them, as `F.pad` takes them.
    """
    here, there = owned(neighbours.at), wanted(neighbours.at)
    kept = overlap(here, there)
    whole = own.new_empty(padded(shape(there), around))
    result = clear_around(whole, around)
    if volume(kept):
        result[within(kept, there)] = own[within(kept, here)]
    for box, piece in exchange(own, owned, wanted, neighbours):
        result[within(box, there)] = piece
    return whole


def padded(sizes: Sequence[int], around: Sequence[int]) -> list[int]:
    """Extents with some zeros around, which are as `F.pad` takes them."""
    extents = list(sizes)
    for place, zeros in enumerate(around):
        extents[-1 - place // 2] += zeros
    return extents


def clear_around(whole: torch.Tensor, around: Sequence[int]) -> torch.Tensor:
    """Write those zeros into a tensor; what they are around is returned."""
    inner = whole
    for place, (low, high) in enumerate(zip(around[::2], around[1::2], strict=True)):
        dim = whole.dim() - 1 - place
        inner.narrow(dim, 0, low).zero_()
        inner.narrow(dim, inner.shape[dim] - high, high).zero_()
        inner = inner.narrow(dim, low, inner.shape[dim] - low - high)
    return inner


def return_rows(
    sums: torch.Tensor,
    carried: Callable[[At], Box],
    owned: Callable[[At], Box],
    neighbours: Neighbours,
) -> torch.Tensor:
    """The words that this rank owns: the sums that it and its peers hold of them.

    The adjoint of `fetch_rows` from `owned` to `carried`: the same words travel the
    other way, and where they were copied they are added.
    """
    here, there = carried(neighbours.at), owned(neighbours.at)
    kept = overlap(here, there)
    if kept == there:
        result = sums[within(kept, here)].clone(memory_format=torch.contiguous_format)
    else:  # of rows that nothing reads
        result = sums.new_zeros(shape(there))
        if volume(kept):
            result[within(kept, there)] = sums[within(kept, here)]
    for box, piece in exchange(sums, carried, owned, neighbours):
        result[within(box, there)] += piece
    return result


def exchange(
    values: torch.Tensor,
    held: Callable[[At], Box],
    wanted: Callable[[At], Box],
    neighbours: Neighbours,
) -> list[tuple[Box, torch.Tensor]]:
    """Send peers what they want of the words held here, get what this rank wants."""
    here, there = held(neighbours.at), wanted(neighbours.at)
    leaving, receiving, arriving = [], [], []
    near = torch.device("cpu") if through_host(values) else values.device
    for peer in neighbours.peers:
        if peer == neighbours.at:
            continue
        rank = rank_of(peer, neighbours.grid)
        leaves, comes = overlap(here, wanted(peer)), overlap(there, held(peer))
        if volume(leaves):
            piece = values[within(leaves, here)].contiguous().to(near)
            leaving.append(dist.P2POp(dist.isend, piece, rank))
        if volume(comes):
            piece = values.new_empty(shape(comes), device=near)
            receiving.append(dist.P2POp(dist.irecv, piece, rank))
            arriving.append((comes, piece))
    neighbours.record(sum(volume(comes) for comes, _ in arriving))
    calls = receiving + leaving  # in this order words go both ways at once
    for request in dist.batch_isend_irecv(calls) if calls else ():
        request.wait()
    return [(box, piece.to(values.device)) for box, piece in arriving]
