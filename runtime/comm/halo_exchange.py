"""Halo exchange: fetch rows of other ranks, or return rows to be added at their owners.

Both functions take any boxes, so redistribution uses them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from synth.runtime.comm.ghost_rows import Rooms, clear_around, padded
from synth.runtime.comm.messages import Messages, exchange
from synth.runtime.comm.precision import HALF, sum_dtype
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
    rooms: Rooms | None = None,
) -> torch.Tensor:
    """The words that this rank wants: some are in `own`, neighbours send the others.

    Sender and receiver intersect the same boxes, so they need no messages about sizes.
    The halo may be wider than a neighbour's block. Strides and uneven blocks are
    allowed.

    own: the words of `owned(at)` of this rank.
    zeros: zeros to put around the result, as `F.pad` takes them.
    rooms: buffers with ghost rows. If `own` lives in one of them, rows are received
        into that buffer, and nothing is copied.
    """
    pending = _start(own, owned, wanted, neighbours)  # own words are copied meanwhile
    here, there = owned(neighbours.at), wanted(neighbours.at)
    common = overlap(here, there)
    room = rooms.of(own, here) if rooms else None
    if room:
        whole, result = room.widened(there), room.values[within(there, room.frame)]
    else:
        whole = own.new_empty(padded(shape(there), zeros))
        result = clear_around(whole, zeros)
        if volume(common):
            result[within(common, there)] = own[within(common, here)]
    for box, piece in _finished(pending):
        result[within(box, there)] = piece
    return whole


def return_rows(
    sums: torch.Tensor,
    carried: Boxes,
    owned: Boxes,
    neighbours: Neighbours,
    in_place: bool = False,
) -> torch.Tensor:
    """The words that this rank owns: the sums that it and its neighbours have.

    The adjoint of `fetch_rows` from `owned` to `carried`: the same words travel in the
    other direction, and are added instead of copied. Half precision is added in float32
    and rounded once.

    sums: the sums of this rank, for the words of its `carried(at)`.
    in_place: the result may be a part of `sums`, which is overwritten.
    """
    pending = _start(sums, carried, owned, neighbours)
    here, there = carried(neighbours.at), owned(neighbours.at)
    common = overlap(here, there)
    if in_place and common == there:
        result = sums[within(common, here)]
    elif common == there:
        result = sums[within(common, here)].clone(memory_format=torch.contiguous_format)
    else:  # nothing reads some of the owned rows
        result = sums.new_zeros(shape(there))
        if volume(common):
            result[within(common, there)] = sums[within(common, here)]
    pieces = _finished(pending)
    boxes = [box for box, _ in pieces]
    if sums.dtype in HALF and not share_no_word(boxes):
        result = result.to(sum_dtype(sums.dtype))
    for box, piece in pieces:
        result[within(box, there)] += piece
    return result.to(sums.dtype)


def share_no_word(boxes: Sequence[Box]) -> bool:
    """Whether no two boxes share a word."""
    return all(
        volume(overlap(one, other)) == 0
        for place, one in enumerate(boxes)
        for other in boxes[:place]
    )


class _Pending(NamedTuple):
    """An exchange that has started."""

    messages: Messages
    boxes: list[Box]  # of what neighbours send


def _start(
    values: torch.Tensor,
    held: Boxes,
    wanted: Boxes,
    neighbours: Neighbours,
) -> _Pending:
    """Start to send neighbours what they want of this rank's words, and to receive."""
    here, there = held(neighbours.at), wanted(neighbours.at)
    sends, extents, boxes = [], [], []
    for peer in neighbours.peers:
        if peer == neighbours.at:
            continue
        index = rank_of(peer, neighbours.grid)
        outgoing, incoming = overlap(here, wanted(peer)), overlap(there, held(peer))
        if volume(outgoing):
            sends.append((index, values[within(outgoing, here)]))
        if volume(incoming):
            extents.append((index, shape(incoming)))
            boxes.append(incoming)
    neighbours.record(sum(map(volume, boxes)))
    return _Pending(exchange(values, sends, extents, neighbours.group), boxes)


def _finished(pending: _Pending) -> list[tuple[Box, torch.Tensor]]:
    """What neighbours sent, once all has arrived and left."""
    return list(zip(pending.boxes, pending.messages.arrived(), strict=True))
