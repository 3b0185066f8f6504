"""Messages between the ranks of a group: they start together and are awaited later.

Two ranks of one host swap words through memory that both map (`pair_memory`). Larger
pieces go over gloo. Behind a kernel of a millisecond, 512 KiB in both directions
between two ranks with a core each take 2.1 ms as two messages, and 0.8 ms as one
all-to-all. Between hosts gloo's all-to-all moves words in one direction at a time.
Where ranks outnumber cores, its threads wait for a core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.comm.pair_memory import PairMemory, pair_memory
from synth.runtime.grid.hosts import is_near_pair
from synth.runtime.grid.spans import waiting
from synth.runtime.grid.transport import near, transport_of

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
    words in one direction at a time.

    Two ranks of one host swap one piece for one.

    group: torch's; None for the default one.
    """
    if not receives and not sends:
        return []
    transport = transport_of(group, (*receives, *sends)[0][1].device)
    if transport.queued:
        calls = [
            dist.P2POp(call, piece, group=group, group_peer=rank)
            for call, pieces in ((dist.irecv, receives), (dist.isend, sends))
            for rank, piece in pieces
        ]
        return dist.batch_isend_irecv(calls)
    if transport.quick_all_to_all and _is_swap(receives, sends):
        swap = _swap(receives, sends, group)
        if swap is not None:
            return [swap]
    # a batch would check every message twice more
    return [
        *(dist.irecv(piece, group=group, group_src=rank) for rank, piece in receives),
        *(dist.isend(piece, group=group, group_dst=rank) for rank, piece in sends),
    ]


def _is_swap(receives: Pieces, sends: Pieces) -> bool:
    """Whether at most one piece comes and one leaves; each rank of a pair says so."""
    pieces = [piece for _, piece in (*receives, *sends)]
    few = max(len(receives), len(sends)) == 1
    return few and pieces[0].dtype == pieces[-1].dtype


def _swap(receives: Pieces, sends: Pieces, group: Any) -> Any:
    """Start to swap pieces of a pair; None where messages are better.

    A piece that does not travel is empty.
    """
    some = (*receives, *sends)[0][1]
    memory, near_pair = _memory(some, group), is_near_pair(group)
    if memory is None and not near_pair:
        return None
    came, left = (
        pieces[0][1].view(-1) if pieces else some.new_empty(0)
        for pieces in (receives, sends)
    )
    if memory is not None and memory.has_room(came, left):
        return memory.start(came, left)
    if not near_pair:
        return None
    counts = [[0, 0], [0, 0]]
    for words, pieces in zip(counts, (receives, sends), strict=True):
        for rank, piece in pieces:
            words[rank] = piece.numel()
    return all_to_all(came, left, counts[0], counts[1], group)


def swaps(values: torch.Tensor, group: Any) -> bool:
    """Whether two ranks swap their values, whatever the backend's own collectives."""
    return is_near_pair(group) or _memory(values, group) is not None


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
    if memory is not None:
        me, half = memory.me, len(leaving) // 2
        came = torch.split(arriving, half if words_in is None else list(words_in))
        left = torch.split(leaving, half if words_out is None else list(words_out))
        if memory.has_room(came[1 - me], left[1 - me]):
            if came[me].numel():
                came[me].copy_(left[me])
            return memory.start(came[1 - me], left[1 - me])
    carried = transport_of(group, leaving.device).carried
    ends = {"group": group, "async_op": True}
    pair = carried(arriving), carried(leaving)
    return dist.all_to_all_single(*pair, words_in, words_out, **ends)


def all_reduce(values: torch.Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> Any:
    """Start to add values up over the ranks of a group, in their place.

    Returns what to wait for. group: torch's; None for the default one.
    """
    memory = _memory(values, group) if op == dist.ReduceOp.SUM else None
    if memory is not None and memory.has_room(values):
        return PairSum(values, memory)
    return dist.all_reduce(values, op, group=group, async_op=True)


class PairSum:
    """A sum of two ranks on its way. values: the terms of this rank, then the sums."""

    def __init__(self, values: torch.Tensor, memory: PairMemory) -> None:
        self.values, self.others = values, torch.empty_like(values)
        self.swap = memory.start(self.others, values)

    def wait(self) -> None:
        """Add the terms of the other rank."""
        self.swap.wait()
        self.values.data.add_(self.others)


def _memory(values: torch.Tensor, group: Any) -> PairMemory | None:
    """What a pair swaps values through; None where they are messages, or traced."""
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    quick = transport_of(group, values.device).quick_all_to_all
    return pair_memory(group) if quick else None


def wait_for(requests: list[Any]) -> None:
    """Wait for messages, and let go of each at once: a request holds what it sends."""
    with waiting("wait for messages"):
        while requests:
            requests.pop(0).wait()
