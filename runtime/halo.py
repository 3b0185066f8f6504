"""Redistribution: every rank gets the words of a box that other ranks own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from runtime.blocks import Box, overlap, shape, volume, within
from runtime.mesh import At, rank_of


def redistribute(
    own: torch.Tensor,
    owned: Callable[[At], Box],
    wanted: Callable[[At], Box],
    at: At,
    peers: list[At],
    grid: dict[str, int],
    count: Callable[[int], None],
) -> torch.Tensor:
    """The words of `wanted(at)`: those in `own` are copied, `peers` send the others.

    Both sides intersect the same intervals, so nobody has to ask. A halo is the case in
    which the rows wanted are a little more than those owned; it may be wider than the
    part of a neighbour, and nothing is assumed about strides or even parts.
    """
    here, there = owned(at), wanted(at)
    kept = overlap(here, there)
    result = own.new_empty(shape(there))
    if volume(kept):
        result[within(kept, there)] = own[within(kept, here)]
    requests, arriving = [], []
    for peer in peers:
        if peer == at:
            continue
        rank = rank_of(peer, grid)
        leaves, comes = overlap(here, wanted(peer)), overlap(there, owned(peer))
        if volume(leaves):
            piece = own[within(leaves, here)].contiguous()
            requests.append(dist.P2POp(dist.isend, piece, rank))
        if volume(comes):
            piece = own.new_empty(shape(comes))
            requests.append(dist.P2POp(dist.irecv, piece, rank))
            arriving.append((comes, piece))
            count(volume(comes))
    for request in dist.batch_isend_irecv(requests) if requests else ():
        request.wait()
    for box, piece in arriving:
        result[within(box, there)] = piece
    return result
