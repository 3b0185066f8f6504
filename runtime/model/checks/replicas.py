"""Words that several ranks hold must be the same on all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from synth.runtime.comm.group_tree import combined
from synth.runtime.grid.boxes import Box, overlap, volume, within
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor

if TYPE_CHECKING:
    from synth.runtime.model.network import Network

# parameter or buffer, region, replica; -1 for what all replicas have
Region = tuple[str, Box, int]


class Copies(NamedTuple):
    """Regions of which ranks hold copies. Ranks are told by their index.

    first: region -> the first rank known to hold it, and its digest there. apart:
    region -> two ranks with other words.
    """

    first: dict[Region, tuple[int, str]]
    apart: dict[Region, tuple[int, int]]

    def with_child(self, child: Copies) -> Copies:
        """The same of these ranks and others."""
        first, apart = dict(self.first), self.apart | child.apart
        for region, (other, digest) in child.first.items():
            one, known = first.setdefault(region, (other, digest))
            if known != digest:
                apart.setdefault(region, (one, other))
        return Copies(first, {**apart, **self.apart})


def check_replicas(net: Network) -> None:
    """Compare the copies of parameters and buffers, bit by bit, on all ranks of `net`.

    All its ranks must call it, in every replica. It takes one exchange of 16 bytes for
    each region of which several ranks hold copies, and reads each of these words once.
    Running statistics of replicas differ until the next pass that trains, so these are
    compared inside each replica.

    Raises `RuntimeError` on all ranks, with parameter and ranks, if copies differ: the
    program changed them on some ranks alone, or a memory or link was faulty.
    """
    ranks = net.ranks.everyone
    net.ranks.require_all("check of replicas")
    own = {key: (ranks.me, digest) for key, digest in digests_of(net).items()}
    apart = combined(ranks, Copies(own, {}), Copies.with_child, lambda told: told.apart)
    if not apart:
        return
    (key, region, _), pair = next(iter(apart.items()))
    one, other = (ranks.members[index] for index in pair)
    names = list(dict.fromkeys(name for name, _, _ in apart))
    more = f", as have {len(names) - 1} more tensors" if len(names) > 1 else ""
    raise RuntimeError(
        f"{key} has other words on rank {other} than on rank {one}, in the region"
        f" {region} of which both hold a copy{more}; change parameters alike on all"
        " ranks, and load the last checkpoint"
    )


def digests_of(net: Network) -> dict[Region, str]:
    """Of every region of which this rank and another hold copies."""
    found, replicas, changing = dict[Region, str](), net.ranks.replicas, set[str]()
    if replicas is not None and net.program.replication is not None:
        changing = set(net.program.replication.buffers)
    for name, values in (*net.named_parameters(), *net.named_buffers()):
        own = replicas is not None and name in changing
        replica = replicas.me if replicas is not None and own else -1
        if isinstance(values, PartitionedTensor):
            place, local = values.partition, values._local
            regions = dict.fromkeys(copied(place))
            if replicas is not None and not own and place.local_words:
                regions[place.box] = None  # whose words other replicas hold
            for region in regions:
                found[name, region, replica] = _digest(local[within(region, place.box)])
        else:  # a plain tensor is the whole on every rank
            whole = tuple((0, extent) for extent in values.shape)
            found[name, whole, replica] = _digest(values.detach())
    return found


def copied(place: Partition) -> Iterator[Box]:
    """The regions of the own box that other ranks hold, too; each once."""
    boxes = list(place.layout.boxes)
    others = boxes[: place.ranks.me] + boxes[place.ranks.me + 1 :]
    regions = dict.fromkeys(overlap(place.box, other) for other in others)
    return (region for region in regions if volume(region))


def _digest(values: torch.Tensor) -> str:
    flat = values.detach().contiguous().reshape(-1).cpu()
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
