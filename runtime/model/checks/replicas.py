"""Words that several ranks hold must be the same on all of them.

Each rank compares every copy with the last rank before it that holds the same region.
So it exchanges one digest per copy of its own, however many ranks there are. Copies
that are equal along these chains are equal between any two ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from synth.runtime.comm.group_tree import combined
from synth.runtime.comm.messages import exchange
from synth.runtime.grid.boxes import Box, overlap, volume, within
from synth.runtime.tensor.partitioned import PartitionedTensor

if TYPE_CHECKING:
    from synth.runtime.model.network import Network

BYTES = 16  # of a digest


class Apart(NamedTuple):
    """Copies that differ: of the first tensor, and which tensors have any.

    tensor: its number. other, one: the global ranks that differ. tensors: a bit for
    each.
    """

    tensor: int
    other: int
    one: int
    region: Box
    tensors: int

    def with_child(self, child: Apart) -> Apart:
        """The same of these ranks and others."""
        return min(self, child)._replace(tensors=self.tensors | child.tensors)


class Compared(NamedTuple):
    """A region of a tensor of which this rank and another hold copies.

    tensor: its number. peer: the index of the other rank among those of all replicas.
    before: whether the other one comes before this rank.
    """

    tensor: int
    region: Box
    peer: int
    before: bool


def check_replicas(net: Network) -> None:
    """Compare the copies of parameters and buffers, bit by bit, on all ranks of `net`.

    All its ranks must call it, in every replica. A rank sends and gets 16 bytes for
    each of its regions of which other ranks hold copies, and reads their words once.
    Running statistics of replicas differ until the next pass that trains, so these are
    compared inside each replica.

    Raises `RuntimeError` on all ranks, with parameter and ranks, if copies differ: the
    program changed them on some ranks alone, or a memory or link was faulty.
    """
    net.ranks.require_all("check of replicas")
    names = [name for name, _ in _tensors(net)]
    none = Apart(len(names), 0, 0, (), 0)
    found = combined(net.ranks.everyone, _own(net) or none, Apart.with_child)
    if not found.tensors:
        return
    count = found.tensors.bit_count() - 1
    more = f", as have {count} more tensors" if count else ""
    raise RuntimeError(
        f"{names[found.tensor]} has other words on rank {found.other} than on rank"
        f" {found.one}, in the region {found.region} of which both hold a copy{more};"
        " change parameters alike on all ranks, and load the last checkpoint"
    )


def _own(net: Network) -> Apart | None:
    """The copies of this rank that differ from those of the ranks before it."""
    everyone, tensors = net.ranks.everyone, _tensors(net)
    of_peer: dict[tuple[int, bool], list[Compared]] = {}
    digests: dict[tuple[int, Box], bytes] = {}
    for each in compared(net):
        of_peer.setdefault((each.peer, each.before), []).append(each)
        if (each.tensor, each.region) not in digests:
            values = _words(tensors[each.tensor][1], each.region)
            digests[each.tensor, each.region] = _digest(values)
    mine, theirs = list[tuple[int, torch.Tensor]](), list[tuple[int, tuple[int]]]()
    for (peer, before), some in sorted(of_peer.items()):
        data = b"".join(digests[each.tensor, each.region] for each in some)
        if before:
            theirs.append((peer, (len(data),)))
        else:
            words = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            mine.append((peer, words))
    like = torch.empty(0, dtype=torch.uint8)
    arrived = exchange(like, mine, theirs, everyone.group).arrived()
    apart: Apart | None = None
    for (peer, _), words in zip(theirs, arrived, strict=True):
        data = words.numpy().tobytes()
        for place, each in enumerate(of_peer[peer, True]):
            own = digests[each.tensor, each.region]
            if data[place * BYTES : (place + 1) * BYTES] != own:
                ranks = everyone.rank, everyone.members[peer]
                new = Apart(each.tensor, *ranks, each.region, 1 << each.tensor)
                apart = apart.with_child(new) if apart else new
    return apart


def _tensors(net: Network) -> list[tuple[str, torch.Tensor]]:
    return [*net.named_parameters(), *net.named_buffers()]


def compared(net: Network) -> Iterator[Compared]:
    """What this rank compares with others; two ranks list it in the same order."""
    ranks, replicas, changing = net.ranks, net.ranks.replicas, set[str]()
    place_of = {rank: place for place, rank in enumerate(ranks.everyone.members)}
    if replicas is not None and net.program.replication is not None:
        changing = set(net.program.replication.buffers)
    for number, (name, values) in enumerate(_tensors(net)):
        alone = replicas is None or name in changing
        if isinstance(values, PartitionedTensor):
            members, at = values.partition.ranks.members, values.partition.ranks.me
            pairs = list(neighbours(values.partition.layout.boxes, at))
            box, words = values.partition.box, values.partition.local_words
        else:  # a plain tensor is the whole on every rank
            members, at = ranks.members, ranks.me
            box, words = tuple((0, extent) for extent in values.shape), 1
            pairs = [(box, other) for other in (at - 1, at + 1)]
        for region, other in pairs:
            if 0 <= other < len(members):
                yield Compared(number, region, place_of[members[other]], other < at)
        if replicas is not None and not alone and words:
            for other in (replicas.me - 1, replicas.me + 1):
                if 0 <= other < len(replicas.rows):
                    peer = place_of[replicas.rows[other][ranks.me]]
                    yield Compared(number, box, peer, other < replicas.me)


def neighbours(boxes: Sequence[Box], at: int) -> Iterator[tuple[Box, int]]:
    """(a region, the rank next before or after `at` with which it shares just this).

    Two ranks need not be neighbours: between them come others that hold the region.
    """
    own = boxes[at]
    before = {overlap(own, boxes[other]): other for other in range(at)}
    yield from (pair for pair in before.items() if volume(pair[0]))
    for other in range(at + 1, len(boxes)):
        region = overlap(own, boxes[other])
        if volume(region) and not any(
            overlap(boxes[other], boxes[each]) == region
            for each in range(other - 1, at, -1)
        ):
            yield region, other


def _words(values: torch.Tensor, region: Box) -> torch.Tensor:
    if isinstance(values, PartitionedTensor):
        return values._local[within(region, values.partition.box)]
    return values


def _digest(values: torch.Tensor) -> bytes:
    flat = values.detach().contiguous().reshape(-1).cpu()
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).digest()[:BYTES]
