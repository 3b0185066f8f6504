"""Bringing panels in and sums together, by what the backend at hand does best.

gloo's own all-gather runs around a ring and its reduce-scatter moves what an all-reduce
moves. So words travel there from the rank that has them to the one that needs them, and
terms of a sum are added where they arrive; pieces may be uneven, no word travels twice.
Small pieces go by one all-to-all, which wakes a rank once. Large ones, and shares that
few ranks want, go as messages of their own, all receives posted before the first send:
the notice that a receive is ready queues behind what leaves on the same connection,
which would then carry words one way at a time (gloo's all-to-all does). On nccl even
pieces of one panel go by its all-gather and reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.comm.buffer_pool import Room
from synth.runtime.grid.boxes import Box, consecutive, shape, volume, within
from synth.runtime.grid.process_grid import Group, through_host

LARGE = 2**18  # bytes of a piece that goes as a message of its own


class PendingGather(NamedTuple):
    """A panel on its way: the parts that ranks of a group carry, and their values."""

    panel: Box
    parts: Sequence[Box]
    pieces: list[torch.Tensor]
    whole: list[torch.Tensor]  # what all pieces are parts of, where they fit together
    requests: list[Any]
    taken: list[torch.Tensor]  # those pieces of which the room is free afterwards


class PendingReduce(NamedTuple):
    """Partial sums on their way: what this rank sums, its own and the others' terms."""

    box: Box
    own: torch.Tensor
    terms: torch.Tensor  # the first dimension is the rank that they come from
    requests: Sequence[Any]
    sent: torch.Tensor  # read until the requests are done


def all_gather(
    panel: Box, parts: Sequence[Box], own: torch.Tensor, group: Group
) -> PendingGather:
    """Start to bring a panel together on all ranks of a group.

    parts: for each rank of the group the box that it carries of the panel, maybe empty.
    own: the values of this rank's part.
    """
    carriers = [rank for rank, part in enumerate(parts) if volume(part)]
    whole, fits = list[torch.Tensor](), all(consecutive(part, panel) for part in parts)
    taken: list[torch.Tensor] = []
    if len(carriers) == 1 or through_host(own):  # gloo broadcasts from a GPU, too
        pieces = _places(parts, own, group, taken)
        requests = [
            dist.broadcast(
                pieces[source], group=group.handle, group_src=source, async_op=True
            )
            for source in carriers
        ]
    elif native(group) and len({volume(part) for part in parts}) == 1:
        flat = own.new_empty(len(parts) * own.numel())
        call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        requests = [call(flat, own.view(-1), group=group.handle, async_op=True)]
        pieces, whole = _rows(flat, panel, parts, fits)
    elif native(group) or large(own, parts):
        pieces, whole = _room(panel, parts, own, group, taken)
        requests = _to_each_other([own] * len(parts), pieces, group)
    else:
        words = [volume(part) for part in parts]
        flat, leave = own.new_empty(sum(words)), [own.numel()] * len(parts)
        sent = own.flatten().repeat(len(parts))
        requests = [_at_once(flat, sent, words, leave, group)]
        pieces, whole = _rows(flat, panel, parts, fits)
    return PendingGather(panel, parts, pieces, whole, requests, taken)


def all_gather_rotated(
    panel: Box,
    parts: Sequence[Box],
    own: torch.Tensor,
    wanted: Sequence[bool],
    group: Group,
) -> PendingGather:
    """Start to bring each rank of a group a panel of its own.

    parts: for each rank the box that it carries of this rank's panel, maybe empty.
    own: this rank's part of a panel; `wanted` says for each rank whether it uses that.
    """
    own = own.contiguous()
    none = own.new_empty(0)
    leave = [own if used else none for used in wanted]
    mine = own if volume(parts[group.me]) else none.view(shape(parts[group.me]))
    taken = list[torch.Tensor]()
    if through_host(own):
        words = [volume(part) for part in parts]
        flat, sent = own.new_empty(sum(words)), torch.cat([p.flatten() for p in leave])
        sizes = [piece.numel() for piece in leave]
        requests = [_at_once(flat, sent, words, sizes, group)]
        pieces, whole = _rows(flat, panel, parts, fits=False)
    else:
        pieces, whole = _room(panel, parts, mine, group, taken)
        requests = _to_each_other(leave, pieces, group)
    return PendingGather(panel, parts, pieces, whole, requests, taken)


def _room(
    panel: Box,
    parts: Sequence[Box],
    own: torch.Tensor,
    group: Group,
    taken: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Where the parts of a panel arrive, in their places if they fit; the own is there.

    A single part is the panel. Room that is free afterwards is noted in `taken`.
    """
    filled = [part for part in parts if volume(part)]
    if len(filled) < 2 or not all(consecutive(part, panel) for part in filled):
        return _places(parts, own, group, taken), []
    whole = own.new_empty(shape(panel))
    pieces = [whole[within(part, panel)] for part in parts]
    pieces[group.me].copy_(own)
    return pieces, [whole]


def _rows(
    flat: torch.Tensor, panel: Box, parts: Sequence[Box], fits: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parts, one behind the other in a buffer, and the panel if they are it."""
    rows = torch.split(flat, [volume(part) for part in parts])
    pieces = [row.view(shape(part)) for row, part in zip(rows, parts, strict=True)]
    in_order = fits and list(parts) == sorted(parts)
    return pieces, [flat.view(shape(panel))] if in_order else []


def large(values: torch.Tensor, parts: Sequence[Box]) -> bool:
    """Whether pieces go as messages of their own; the same on all ranks of a group."""
    return max(map(volume, parts)) * values.element_size() >= LARGE


def _places(
    parts: Sequence[Box], own: torch.Tensor, group: Group, taken: list[torch.Tensor]
) -> list[torch.Tensor]:
    """The own piece, and room for those of the others, which is noted in `taken`."""
    pieces = []
    for rank, part in enumerate(parts):
        pieces.append(own if rank == group.me else Room.take(own, *shape(part)))
        if rank != group.me:
            taken.append(pieces[-1])
    return pieces


def _at_once(
    arriving: torch.Tensor,
    sent: torch.Tensor,
    come: Sequence[int],
    leave: Sequence[int],
    group: Group,
) -> Any:
    """One all-to-all of so many words from, and to, each rank of the group."""
    ends = {"group": group.handle, "async_op": True}
    return dist.all_to_all_single(arriving, sent, come, leave, **ends)


def _to_each_other(
    leave: Sequence[torch.Tensor], come: Sequence[torch.Tensor], group: Group
) -> list[Any]:
    """Send every other rank of the group its piece, get one from each."""
    ranks = len(come)
    calls = [
        dist.P2POp(call, pieces[rank], group=group.handle, group_peer=rank)
        for call, pieces, way in ((dist.irecv, come, -1), (dist.isend, leave, 1))
        for step in range(1, ranks)  # all start with another partner
        for rank in [(group.me + way * step) % ranks]
        if pieces[rank].numel()
    ]
    return dist.batch_isend_irecv(calls) if calls else []


def wait_gather(coming: PendingGather) -> torch.Tensor:
    """Wait for the pieces of a panel and put them together; `coming` is then empty."""
    panel, parts, pieces, wholes, requests, _ = coming
    for request in requests:
        request.wait()
    requests.clear()
    whole = wholes.pop() if wholes else None
    if whole is None and panel in parts:
        whole = pieces[parts.index(panel)]
    if whole is None:
        whole = pieces[0].new_empty(shape(panel))
        for part, values in zip(parts, pieces, strict=True):
            whole[within(part, panel)] = values
    Room.leave(*(piece for piece in coming.taken if piece is not whole))
    pieces.clear()
    coming.taken.clear()
    return whole


def wait_gathers(
    coming: dict[str, PendingGather], panels: dict[str, torch.Tensor]
) -> None:
    """Wait for the panels on their way; each takes the place of the one before."""
    while coming:
        tensor, panel = coming.popitem()
        panels.pop(tensor, None)
        panels[tensor] = wait_gather(panel)


def reduce_scatter(
    sums: torch.Tensor, panel: Box, shares: Sequence[Box], group: Group
) -> PendingReduce:
    """Start to sum a panel over a group; each of its ranks gets the total of its share.

    sums: this rank's terms of the panel.
    shares: for each rank of the group the box that it sums, maybe empty.
    """
    mine = shares[group.me]
    words = [volume(share) for share in shares]
    if len(set(words)) == 1 and native(group):
        sent = _behind_each_other(sums, panel, shares)
        total = sums.new_empty(shape(mine))
        call = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        request = call(total.view(-1), sent, group=group.handle, async_op=True)
        return PendingReduce(mine, total, Room.take(sums, 0), [request], sent)
    own = sums[within(mine, panel)].clone()
    others = [share for rank, share in enumerate(shares) if rank != group.me]
    sent = _behind_each_other(sums, panel, others)
    terms = Room.take(sums, len(others), *shape(mine))
    leave, come = list(words), [words[group.me]] * len(words)
    leave[group.me] = come[group.me] = 0  # the own terms stay
    if through_host(own) or native(group) or not large(own, shares):
        requests = [_at_once(terms.view(-1), sent, come, leave, group)]
    else:
        requests = _to_each_other(
            torch.split(sent, leave), torch.split(terms.view(-1), come), group
        )
    return PendingReduce(mine, own, terms, requests, sent)


def _behind_each_other(
    sums: torch.Tensor, panel: Box, shares: Sequence[Box]
) -> torch.Tensor:
    """The words of some boxes of a panel, one box after the other."""
    flat = Room.take(sums, sum(volume(share) for share in shares))
    begin = 0
    for share in shares:
        part = flat[begin : begin + volume(share)]
        part.view(shape(share)).copy_(sums[within(share, panel)])
        begin += volume(share)
    return flat


def wait_reduce(leaving: PendingReduce) -> torch.Tensor:
    """Wait for the terms of the others; the total of this rank's share."""
    for request in leaving.requests:
        request.wait()
    total = leaving.own
    for term in leaving.terms:
        total += term
    Room.leave(leaving.terms, leaving.sent)
    return total


def wait_reduces(leaving: list[PendingReduce], sums: torch.Tensor, frame: Box) -> None:
    """Add the totals of panels on their way to `sums`, which holds the box `frame`."""
    while leaving:
        panel = leaving.pop()
        sums[within(panel.box, frame)] += wait_reduce(panel)


def native(group: Group) -> bool:
    """Whether even pieces go by the backend's own collectives."""
    return bool(dist.get_backend(group.handle) == "nccl")
