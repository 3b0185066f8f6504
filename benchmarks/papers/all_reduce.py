"""A topology-aware all-reduce over point-to-point messages, on any number of ranks.

Recursive halving (a reduce-scatter), then recursive doubling (an all-gather), as in
Thakur, Rabenseifner and Gropp (2005). The ranks of each unit of the machine (node,
supernode) are numbered round-robin, as in Li et al. (swCaffe, CLUSTER 2018, section
5.1). Then partners that exchange large messages are in one unit, and only the small
messages of the last halvings and first doublings cross units. If P is no power of two,
the ranks beyond the largest power of two send their buffer to a partner first, and get
the result from it last.

    8 ranks in 2 units of 4: ranks 0 4 1 5 2 6 3 7 have the places 0 1 2 3 4 5 6 7.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def places(procs: int, unit: int) -> list[int]:
    """Place -> rank: round-robin over units of `unit` consecutive ranks."""
    if procs < 1 or unit < 1:
        raise ValueError(f"{procs} ranks in units of {unit}: both must be at least 1")
    return sorted(range(procs), key=lambda rank: (rank % unit, rank // unit))


def crossing_elements(procs: int, unit: int, elements: int, dealt: bool = True) -> int:
    """Elements that a rank sends to other units, at most; `procs` a power of two."""
    order = places(procs, unit) if dealt else list(range(procs))
    most = 0
    for place in range(procs):
        sent, distance, size = 0, procs // 2, elements
        while distance:
            size = -(-size // 2)
            sent += 2 * size if order[place] // unit != order[place ^ distance] // unit else 0
            distance //= 2
        most = max(most, sent)
    return most


def all_reduce(tensor: torch.Tensor, unit: int = 1, group: dist.ProcessGroup | None = None) -> int:
    """Sum `tensor` over a group, in place; every rank ends with the same bits.

    `unit` is how many consecutive ranks share a node (or supernode). Returns the
    elements that this rank received. Every rank must call it with the same shape, dtype
    and unit.
    """
    procs, rank = dist.get_world_size(group), dist.get_rank(group)
    if procs == 1 or tensor.numel() == 0:
        return 0
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.contiguous().reshape(-1)
    received = _Exchange(flat, places(procs, unit), rank, group).run()
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.reshape(tensor.shape))
    return received


class _Exchange:
    def __init__(
        self,
        flat: torch.Tensor,
        order: list[int],
        rank: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.flat, self.order, self.group = flat, order, group
        self.place = order.index(rank)
        self.core = 1 << (len(order).bit_length() - 1)  # the largest power of two
        size, longer = divmod(flat.numel(), self.core)
        self.starts = [part * size + min(part, longer) for part in range(self.core + 1)]
        self.received = 0

    def run(self) -> int:
        extra = len(self.order) - self.core
        if self.place >= self.core:
            partner = self.place - self.core
            self.send(self.flat, partner)
            self.receive(self.flat, partner)
            return self.received
        if self.place < extra:
            arrived = torch.empty_like(self.flat)
            self.receive(arrived, self.place + self.core)
            self.flat += arrived
        self.halve()
        self.double()
        if self.place < extra:
            self.send(self.flat, self.place + self.core)
        return self.received

    def halve(self) -> None:
        """Reduce-scatter: afterwards this place holds the sum of its own part."""
        low, high, distance = 0, self.core, self.core // 2
        while distance:
            partner, middle = self.place ^ distance, low + distance
            mine, theirs = (
                ((low, middle), (middle, high)) if self.place < partner else ((middle, high), (low, middle))
            )
            kept = self.parts(*mine)
            arrived = torch.empty_like(kept)
            self.swap(self.parts(*theirs), arrived, partner)
            kept += arrived
            (low, high), distance = mine, distance // 2

    def double(self) -> None:
        """All-gather: the same exchanges backwards."""
        distance = 1
        while distance < self.core:
            partner = self.place ^ distance
            mine, theirs = (
                self.place // distance * distance,
                partner // distance * distance,
            )
            self.swap(
                self.parts(mine, mine + distance),
                self.parts(theirs, theirs + distance),
                partner,
            )
            distance *= 2

    def parts(self, low: int, high: int) -> torch.Tensor:
        return self.flat[self.starts[low] : self.starts[high]]

    def global_rank(self, place: int) -> int:
        rank = self.order[place]
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def send(self, piece: torch.Tensor, place: int) -> None:
        if piece.numel():
            dist.send(piece, self.global_rank(place), self.group)

    def receive(self, piece: torch.Tensor, place: int) -> None:
        if piece.numel():
            dist.recv(piece, self.global_rank(place), self.group)
            self.received += piece.numel()

    def swap(self, out: torch.Tensor, into: torch.Tensor, place: int) -> None:
        peer = self.global_rank(place)
        pending = dist.irecv(into, peer, self.group) if into.numel() else None
        if out.numel():  # after the receive: else words travel in one direction at a time
            dist.send(out, peer, self.group)
        if pending is not None:
            pending.wait()
            self.received += into.numel()
