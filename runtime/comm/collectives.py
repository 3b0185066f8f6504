"""All-gather and reduce-scatter of panels, by the fastest means of the backend.

gloo's own all-gather is a ring, and its reduce-scatter moves as much as an all-reduce.
Here every word travels once, from the rank that has it to the ranks that need it, and
partial sums are added where they arrive. Pieces may be uneven.

Small pieces go in one all-to-all, which wakes a rank once. Between two ranks gloo's
all-gather is one message, too, and needs no copy of what is sent. Large pieces, and
pieces that few ranks need, go as messages of their own: they travel in both directions
at once, those of gloo's all-to-all do not. Ranks of one host send all pieces through
memory (`start_messages`). A transport may have faster collectives of its own, as nccl
has. Even pieces of one panel go by these. Sums of half precision do not: they would be
rounded once for every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.comm.messages import (
    all_to_all,
    send_to_all,
    shares_memory,
    start_messages,
    wait_for,
)
from synth.runtime.comm.panel_pieces import (
    concatenated,
    joint_pieces,
    separate_pieces,
    split_pieces,
)
from synth.runtime.comm.precision import HALF, sum_dtype
from synth.runtime.comm.process_groups import Group
from synth.runtime.grid.boxes import Box, consecutive, shape, volume, within
from synth.runtime.grid.rules.shared_rounds import LARGE
from synth.runtime.grid.transport import through_host, transport_of


class PendingGather(NamedTuple):
    """A panel whose gather has started. `wait_gather` leaves it empty."""

    panel: Box
    parts: Sequence[Box]  # the box that each rank of the group carries
    pieces: list[torch.Tensor]  # the values of those boxes
    whole: list[torch.Tensor]  # the panel, if the pieces are views of one tensor
    requests: list[Any]
    taken: list[torch.Tensor]  # pieces that come from the group's buffer pool
    group: Group


class PendingReduce(NamedTuple):
    """A reduce-scatter that has started. `wait_reduce` leaves it without memory."""

    box: Box  # the part that this rank sums
    own: torch.Tensor  # this rank's terms
    requests: list[Any]
    taken: list[torch.Tensor]  # the others' terms, by sender; what is sent until then
    group: Group


def all_gather(
    panel: Box, parts: Sequence[Box], own: torch.Tensor, group: Group
) -> PendingGather:
    """Start to gather a panel on all ranks of a group.

    parts: for each rank of the group the part of the panel that it carries, maybe
        empty.
    own: the values of this rank's part.
    """
    own = own.contiguous()
    carriers = [rank for rank, part in enumerate(parts) if volume(part)]
    whole, fits = list[torch.Tensor](), all(consecutive(part, panel) for part in parts)
    taken: list[torch.Tensor] = []
    even, pair = len({volume(part) for part in parts}) == 1, len(parts) == 2
    # gloo broadcasts from a GPU, too
    if len(carriers) == 1 or through_host(own, group.handle):
        pieces = separate_pieces(parts, own, group, taken)
        requests = [
            send_to_all(pieces[source], source, group.handle) for source in carriers
        ]
    elif even and (native(own, group) or (pair and not large(own, parts, group))):
        flat = own.new_empty(len(parts) * own.numel())
        pieces, whole = split_pieces(flat, panel, parts, fits)
        if native(own, group) or not shares_memory(own, group.handle):
            requests = [native_gather(flat, own, group.handle, async_op=True)]
        else:
            pieces[group.me].copy_(own)
            requests = _send_and_receive([own] * 2, pieces, group)
    elif native(own, group) or large(own, parts, group):
        pieces, whole = joint_pieces(panel, parts, own, group, taken)
        sent = pieces[group.me]  # where it is in the panel, `own` may be freed
        requests = _send_and_receive([sent] * len(parts), pieces, group)
    else:
        words = [volume(part) for part in parts]
        flat, outgoing = own.new_empty(sum(words)), [own.numel()] * len(parts)
        sent = own.flatten().repeat(len(parts))
        requests = [all_to_all(flat, sent, words, outgoing, group.handle)]
        pieces, whole = split_pieces(flat, panel, parts, fits)
    return PendingGather(panel, parts, pieces, whole, requests, taken, group)


def all_gather_rotated(
    panel: Box,
    parts: Sequence[Box],
    own: torch.Tensor,
    needed: Sequence[bool],
    group: Group,
) -> PendingGather:
    """Start to gather on each rank of a group a panel of its own.

    parts: for each rank the part of this rank's panel that it carries, maybe empty.
    own: what this rank carries, a part of one panel. `needed` says for each rank
        whether its panel contains that part.
    """
    own = own.contiguous()
    none = own.new_empty(0)
    outgoing = [own if need else none for need in needed]
    mine = own if volume(parts[group.me]) else none.view(shape(parts[group.me]))
    taken = list[torch.Tensor]()
    if through_host(own, group.handle):
        words, sizes = [volume(part) for part in parts], [p.numel() for p in outgoing]
        flat = own.new_empty(sum(words))
        sent = torch.cat([piece.flatten() for piece in outgoing])
        requests = [all_to_all(flat, sent, words, sizes, group.handle)]
        pieces, whole = split_pieces(flat, panel, parts, fits=False)
    else:
        pieces, whole = joint_pieces(panel, parts, mine, group, taken)
        requests = _send_and_receive(outgoing, pieces, group)
    return PendingGather(panel, parts, pieces, whole, requests, taken, group)


def wait_gather(pending: PendingGather) -> torch.Tensor:
    """Wait for the pieces of a panel and join them."""
    panel, parts, pieces, wholes, requests, taken, group = pending
    wait_for(requests)
    whole = wholes.pop() if wholes else None
    if whole is None and panel in parts:
        whole = pieces[parts.index(panel)]
    if whole is None:
        whole = pieces[0].new_empty(shape(panel))
        for part, values in zip(parts, pieces, strict=True):
            whole[within(part, panel)] = values
    group.buffers.release(*(piece for piece in taken if piece is not whole))
    pieces.clear()
    taken.clear()
    return whole


def wait_gathers(
    pending: dict[str, PendingGather], panels: dict[str, torch.Tensor]
) -> None:
    """Wait for all pending panels; each replaces the former panel of its tensor."""
    while pending:
        tensor, gather = pending.popitem()
        panels.pop(tensor, None)
        panels[tensor] = wait_gather(gather)


def reduce_scatter(
    sums: torch.Tensor, panel: Box, parts: Sequence[Box], group: Group
) -> PendingReduce:
    """Start to sum a panel over a group; each rank gets the totals of its part.

    sums: this rank's terms of the panel.
    parts: for each rank of the group the part that it sums, maybe empty.
    """
    mine = parts[group.me]
    words = [volume(part) for part in parts]
    if len(set(words)) == 1 and native(sums, group) and sums.dtype not in HALF:
        sent = concatenated(sums, panel, parts, group)
        total = sums.new_empty(shape(mine))
        call = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        request = call(total.view(-1), sent, group=group.handle, async_op=True)
        no_terms = group.buffers.take(sums, 0)
        return PendingReduce(mine, total, [request], [no_terms, sent], group)
    own = sums[within(mine, panel)].clone()
    others = [part for rank, part in enumerate(parts) if rank != group.me]
    sent = concatenated(sums, panel, others, group)
    terms = group.buffers.take(sums, len(others), *shape(mine))
    outgoing, incoming = list(words), [words[group.me]] * len(words)
    outgoing[group.me] = incoming[group.me] = 0  # this rank's terms stay here
    alone = large(own, parts, group)
    if through_host(own, group.handle) or native(own, group) or not alone:
        requests = [all_to_all(terms.view(-1), sent, incoming, outgoing, group.handle)]
    else:
        requests = _send_and_receive(
            torch.split(sent, outgoing), torch.split(terms.view(-1), incoming), group
        )
    return PendingReduce(mine, own, requests, [terms, sent], group)


def wait_reduce(pending: PendingReduce) -> torch.Tensor:
    """Wait for the terms of the other ranks; the totals of this rank's part.

    Half precision is added in float32 and rounded once.
    """
    wait_for(pending.requests)
    dtype = pending.own.dtype
    total = pending.own.to(sum_dtype(dtype))
    for term in pending.taken[0]:
        total += term
    pending.group.buffers.release(*pending.taken)
    pending.taken.clear()
    return total.to(dtype)


def wait_reduces(pending: list[PendingReduce], sums: torch.Tensor, frame: Box) -> None:
    """Wait for all pending panels; add their totals to `sums`, which holds `frame`."""
    while pending:
        panel = pending.pop()
        sums[within(panel.box, frame)] += wait_reduce(panel)


def native(values: torch.Tensor, group: Group) -> bool:
    """Whether even pieces go by the transport's own collectives."""
    return transport_of(group.handle, values.device).own_collectives


def native_gather(
    rows: torch.Tensor, own: torch.Tensor, handle: Any, async_op: bool = False
) -> Any:
    """The transport's own all-gather of pieces of one size, under torch's name for it.

    rows: of the pieces of all ranks, consecutive in memory, as `own` is.
    """
    call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    return call(rows.view(-1), own.view(-1), group=handle, async_op=async_op)


def large(values: torch.Tensor, parts: Sequence[Box], group: Group) -> bool:
    """Whether pieces go as messages of their own; the same on all ranks of a group.

    Under a limit of memory all do: an all-to-all needs a copy of a piece for each rank.
    """
    return (
        not group.buffers.keeps
        or max(map(volume, parts)) * values.element_size() >= LARGE
    )


# -- messages --------------------------------------------------------------------------


def _send_and_receive(
    outgoing: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor], group: Group
) -> list[Any]:
    """Send every other rank of the group its piece, and receive one from each.

    Every rank starts with another partner. Empty pieces do not travel.
    """
    ranks = len(incoming)
    after = [(group.me + step) % ranks for step in range(1, ranks)]
    sends = [(rank, outgoing[rank]) for rank in after if outgoing[rank].numel()]
    after.reverse()
    receives = [(rank, incoming[rank]) for rank in after if incoming[rank].numel()]
    return start_messages(receives, sends, group.handle)
