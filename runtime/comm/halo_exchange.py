"""Halo exchange: fetch rows of other ranks, or return rows to be added at their owners.

Both functions take any boxes, so redistribution uses them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import through_host
from synth.runtime.grid.boxes import Box, overlap, shape, volume, within
from synth.runtime.grid.process_grid import At, peers_along, rank_of
from synth.runtime.grid.ranks import Ranks

Boxes = Callable[[At], Box]  # coordinates of a rank -> its box


class Neighbours(NamedTuple):
    """The ranks with which a rank exchanges rows."""

    at: At
    peers: list[At]  # the rank itself is one of them
    grid: dict[str, int]
    record: Callable[[int], None]  # is called with the words received
    group: Any = None  # torch's group of all ranks of the grid; None: the default one


def neighbours_along(
    at: At,
    grid: dict[str, int],
    axes: tuple[str, ...],
    record: Callable[[int], None],
    ranks: Ranks | None = None,
) -> Neighbours:
    """The ranks that differ from `at` only along `axes`.

    ranks: those of the grid; None for all ranks of the job.
    """
    group = None if ranks is None else ranks.group
    return Neighbours(at, peers_along(at, grid, axes), grid, record, group)


def fetch_rows(
    own: torch.Tensor,
    owned: Boxes,
    wanted: Boxes,
    neighbours: Neighbours,
    zeros: Sequence[int] = (),
) -> torch.Tensor:
    """The words that this rank wants: some are in `own`, neighbours send the others.

    Sender and receiver intersect the same boxes, so they need no messages about sizes.
    The halo may be wider than a neighbour's block. Strides and uneven blocks are
    allowed.

    own: the words of `owned(at)` of this rank.
    zeros: zeros to put around the result, as `F.pad` takes them.
    """
    here, there = owned(neighbours.at), wanted(neighbours.at)
    common = overlap(here, there)
    whole = own.new_empty(padded(shape(there), zeros))
    result = clear_around(whole, zeros)
    if volume(common):
        result[within(common, there)] = own[within(common, here)]
    for box, piece in _exchange(own, owned, wanted, neighbours):
        result[within(box, there)] = piece
    return whole


def return_rows(
    sums: torch.Tensor,
    carried: Boxes,
    owned: Boxes,
    neighbours: Neighbours,
) -> torch.Tensor:
    """The words that this rank owns: the sums that it and its neighbours have.

    The adjoint of `fetch_rows` from `owned` to `carried`: the same words travel in the
    other direction, and are added instead of copied. Half precision is added in float32
    and rounded once.

    sums: the sums of this rank, for the words of its `carried(at)`.
    """
    here, there = carried(neighbours.at), owned(neighbours.at)
    common = overlap(here, there)
    if common == there:
        result = sums[within(common, here)].clone(memory_format=torch.contiguous_format)
    else:  # nothing reads some of the owned rows
        result = sums.new_zeros(shape(there))
        if volume(common):
            result[within(common, there)] = sums[within(common, here)]
    pieces = _exchange(sums, carried, owned, neighbours)
    if len(pieces) > 1:
        result = result.to(sum_dtype(sums.dtype))
    for box, piece in pieces:
        result[within(box, there)] += piece
    return result.to(sums.dtype)


def padded(sizes: Sequence[int], zeros: Sequence[int]) -> list[int]:
    """Extents with zeros around, which are as `F.pad` takes them."""
    extents = list(sizes)
    for place, each in enumerate(zeros):
        extents[-1 - place // 2] += each
    return extents


def clear_around(whole: torch.Tensor, zeros: Sequence[int]) -> torch.Tensor:
    """Write zeros around the inner part of a tensor; returns a view of that part."""
    inner = whole
    for place, (low, high) in enumerate(zip(zeros[::2], zeros[1::2], strict=True)):
        dim = whole.dim() - 1 - place
        inner.narrow(dim, 0, low).zero_()
        inner.narrow(dim, inner.shape[dim] - high, high).zero_()
        inner = inner.narrow(dim, low, inner.shape[dim] - low - high)
    return inner


def _exchange(
    values: torch.Tensor,
    held: Boxes,
    wanted: Boxes,
    neighbours: Neighbours,
) -> list[tuple[Box, torch.Tensor]]:
    """Send neighbours what they want of this rank's words; return what they send."""
    here, there = held(neighbours.at), wanted(neighbours.at)
    sends, receives, arriving = [], [], []
    group, cpu = neighbours.group, torch.device("cpu")
    near = cpu if through_host(values, group) else values.device
    for peer in neighbours.peers:
        if peer == neighbours.at:
            continue
        index = rank_of(peer, neighbours.grid)
        outgoing, incoming = overlap(here, wanted(peer)), overlap(there, held(peer))
        if volume(outgoing):
            piece = values[within(outgoing, here)].contiguous().to(near)
            sends.append(_message(dist.isend, piece, group, index))
        if volume(incoming):
            piece = values.new_empty(shape(incoming), device=near)
            receives.append(_message(dist.irecv, piece, group, index))
            arriving.append((incoming, piece))
    neighbours.record(sum(volume(box) for box, _ in arriving))
    calls = receives + sends  # in this order words travel in both directions at once
    for request in dist.batch_isend_irecv(calls) if calls else ():
        request.wait()
    return [(box, piece.to(values.device)) for box, piece in arriving]


def _message(
    call: Callable[..., Any], piece: torch.Tensor, group: Any, index: int
) -> dist.P2POp:
    """A message to or from the rank of a group with an index."""
    return dist.P2POp(call, piece, group=group, group_peer=index)
