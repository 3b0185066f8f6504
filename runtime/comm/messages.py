"""Messages between the ranks of a group: they start together and are awaited later.

Ranks of one host send them through memory that both map (`host_memory`), others over
the transport of their group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.comm.host_memory import NOTHING_SHARED, HostMemory, host_memory
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.grid.spans import waiting
from synth.runtime.grid.transport import near, transport_of

FEW = 2**21  # bytes that a rank sends to all others in a sum
Pieces = Sequence[tuple[int, torch.Tensor]]  # the other rank of the group, the words


class Messages(NamedTuple):
    """Messages on their way. rooms: for what arrives. device: where it is wanted."""

    requests: list[Any]
    rooms: list[torch.Tensor]
    device: torch.device

    def arrived(self) -> list[torch.Tensor]:
        """What the other ranks sent, once all has arrived and left."""
        wait_for(self.requests)
        return [room.to(self.device) for room in self.rooms]


def exchange(
    like: torch.Tensor,
    sends: Pieces,
    extents: Sequence[tuple[int, Sequence[int]]],
    group: Any,
) -> Messages:
    """Start to send pieces to some ranks, and to receive others.

    like: has the dtype and the device of all pieces. extents: (rank, shape of the piece
    that comes from it). group: torch's; None for the default one.
    """
    if not sends and not extents:
        return Messages([], [], like.device)
    place = near(like.device, group)
    outgoing = [(rank, piece.contiguous().to(place)) for rank, piece in sends]
    rooms = [like.new_empty(tuple(each), device=place) for _, each in extents]
    receives = [(rank, room) for (rank, _), room in zip(extents, rooms, strict=True)]
    return Messages(start_messages(receives, outgoing, group), rooms, like.device)


def start_messages(receives: Pieces, sends: Pieces, group: Any) -> list[Any]:
    """Start to receive some pieces and to send others; returns what to wait for.

    All receives are posted before the first send: the notice that a receive is ready
    queues behind the words that leave on the same connection, which would then carry
    words in one direction at a time. What travels through memory is awaited first:
    others may wait for it.

    group: torch's; None for the default one.
    """
    receives, sends = (
        [(rank, piece) for rank, piece in pieces if piece.numel()]
        for pieces in (receives, sends)
    )
    if not receives and not sends:
        return []
    some = (*receives, *sends)[0][1]
    if transport_of(group, some.device).queued:
        calls = [
            dist.P2POp(call, piece, group=group, group_peer=rank)
            for call, pieces in ((dist.irecv, receives), (dist.isend, sends))
            for rank, piece in pieces
        ]
        return dist.batch_isend_irecv(calls)
    shared = _memory(some, group).channels
    # a batch would check every message twice more
    return [
        *(shared[rank].receive(piece) for rank, piece in receives if rank in shared),
        *(shared[rank].send(piece) for rank, piece in sends if rank in shared),
        *(
            dist.irecv(piece, group=group, group_src=rank)
            for rank, piece in receives
            if rank not in shared
        ),
        *(
            dist.isend(piece, group=group, group_dst=rank)
            for rank, piece in sends
            if rank not in shared
        ),
    ]


def all_to_all(
    arriving: torch.Tensor,
    leaving: torch.Tensor,
    words_in: Sequence[int] | None,
    words_out: Sequence[int] | None,
    group: Any,
) -> Any:
    """Start to send words to each rank of a group, and to receive some from each.

    arriving, leaving: one-dimensional, so many words from, and to, each rank, one after
    another; None for as many from each. Returns what to wait for. group: torch's; None
    for the default one.
    """
    memory = _memory(leaving, group)
    if memory.whole:
        ranks, me = len(memory.channels) + 1, dist.get_rank(group)
        came, left = (
            torch.split(flat, list(words)) if words else flat.view(ranks, -1).unbind()
            for flat, words in ((arriving, words_in), (leaving, words_out))
        )
        if came[me].numel():
            came[me].copy_(left[me])
        after = [(me + step) % ranks for step in range(1, ranks)]
        receives, sends = ([(at, each[at]) for at in after] for each in (came, left))
        return Joint(start_messages(receives, sends, group))
    carried = transport_of(group, leaving.device).carried
    ends = {"group": group, "async_op": True}
    pair = carried(arriving), carried(leaving)
    return dist.all_to_all_single(*pair, words_in, words_out, **ends)


def shares_memory(values: torch.Tensor, group: Any) -> bool:
    """Whether all ranks of a group send each other values through memory."""
    return _memory(values, group).whole


def send_to_all(values: torch.Tensor, source: int, group: Any) -> Any:
    """Start to replace values by those of one rank of a group, on all others.

    Returns what to wait for. group: torch's; None for the default one.
    """
    memory = _memory(values, group)
    if not memory.whole:
        ends = {"group": group, "group_src": source, "async_op": True}
        return _in_order(values, partial(dist.broadcast, **ends))
    if dist.get_rank(group) == source:
        sends = [(at, values) for at in memory.channels]
        return Joint(start_messages([], sends, group))
    return Joint(start_messages([(source, values)], [], group))


def _in_order(values: torch.Tensor, start: Callable[[torch.Tensor], Any]) -> Any:
    """Start a collective that replaces values, on contiguous words.

    gloo sends memory in its order, which may be another on another rank.
    """
    alike = values.contiguous()
    request = start(alike)
    return request if alike is values else InPlace(request, values, alike)


class InPlace(NamedTuple):
    """What arrives for a tensor that is not contiguous."""

    request: Any
    values: torch.Tensor
    alike: torch.Tensor

    def wait(self) -> None:
        """Wait, and copy what has come."""
        self.request.wait()
        self.values.data.copy_(self.alike)


class Joint(NamedTuple):
    """Messages that are awaited together."""

    requests: list[Any]

    def wait(self) -> None:
        """Wait for all, and let go of each at once: a request holds what it sends."""
        while self.requests:
            self.requests.pop(0).wait()


def all_reduce(values: torch.Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> Any:
    """Start to add values up over the ranks of a group, in their place.

    Returns what to wait for. group: torch's; None for the default one.
    """
    memory, size = _memory(values, group), values.numel() * values.element_size()
    if op == dist.ReduceOp.SUM and memory.whole and size * len(memory.channels) <= FEW:
        return SharedTerms(values, group, len(memory.channels) + 1)
    return _in_order(
        values, partial(dist.all_reduce, op=op, group=group, async_op=True)
    )


class SharedTerms:
    """A sum on its way: each rank sends its terms to all others.

    They all add them up in the order of the ranks, so they get the same bits. Half
    precision is added in float32 and rounded once.

    values: the terms of this rank, then the sums.
    """

    def __init__(self, values: torch.Tensor, group: Any, ranks: int) -> None:
        self.values, self.me = values, dist.get_rank(group)
        self.others = list(values.new_empty(ranks - 1, *values.shape))
        places = [at for at in range(ranks) if at != self.me]
        receives = list(zip(places, self.others, strict=True))
        sends = [(at, values) for at in places]
        self.messages = Joint(start_messages(receives, sends, group))

    def wait(self) -> None:
        """Add the terms of all ranks."""
        self.messages.wait()
        values = self.values.data
        terms = [*self.others[: self.me], values, *self.others[self.me :]]
        total = terms[0].to(sum_dtype(values.dtype))
        for each in terms[1:]:
            total += each
        if total is not values:
            values.copy_(total)


def _memory(values: torch.Tensor, group: Any) -> HostMemory:
    """Through what ranks of one host send values; nothing where they are traced."""
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return NOTHING_SHARED
    return host_memory(group)


def wait_for(requests: list[Any]) -> None:
    """Wait for messages."""
    with waiting("wait for messages"):
        Joint(requests).wait()
