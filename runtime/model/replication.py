"""What the replicas of a network exchange before a pass that trains.

Replicas are equal networks, each on a batch of its own, as with DDP or the outer
dimension of HSDP. Gradients are averaged in buckets (`gradient_buckets`). Here they
agree that all make the same pass with the same parameters. Replica 0 then gives its
running statistics to the others, so that all states stay alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.comm.agreement import Agreement
from synth.runtime.comm.gradient_buckets import Spread
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import volume
from synth.runtime.grid.ranks import AbsentRanks, Ranks, Replicas, number_of_network
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.tensor.partition import Partition


class Replication:
    """Agreement of the replicas, and their running statistics.

    process_groups: those of the network. held: call -> (key in the model's state, where
    a step uses it). homes: key of the state -> where it is held. tensors: key -> a
    parameter or buffer of the model.
    """

    def __init__(
        self,
        process_groups: ProcessGroups,
        held: Mapping[str, list[tuple[str, Held]]],
        homes: Mapping[str, Held],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        self.ranks = ranks = process_groups.ranks
        mine = (ranks.me,)
        self.group = process_groups.of(mine, purpose="buffers", all_replicas=True)
        assert ranks.replicas is not None
        self.first = ranks.replicas.rows[0][ranks.me]
        pairs = [pair for each in held.values() for pair in each if pair[0] in homes]
        self.parameters = list(
            dict.fromkeys(k for k, _ in pairs if isinstance(tensors[k], nn.Parameter))
        )
        # functions only read the buffers that they are given
        self.buffers = {
            key: place.module
            for key, place in pairs
            if key not in self.parameters
            and not isinstance(place.module, ReplicatedParams)
        }

    def begin(self, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Before a pass: agree on it, and take over the statistics of replica 0.

        tensors: key -> the local part of a parameter or buffer.

        Raises `RuntimeError` on all ranks if the replicas make other passes, or have
        other parameters.
        """
        known = [tensors[key] for key in self.parameters]
        trained = sum(each.requires_grad for each in known)
        self._require_alike(f"{what} with {trained} trained parameters", known)
        self._take_statistics(tensors)

    def _require_alike(self, what: str, parameters: list[torch.Tensor]) -> None:
        pair = self.ranks.everyone.agreement.apart(what, parameters)
        if pair is not None:
            raise RuntimeError(
                f"{what}: rank {pair[1]} has other parameters than rank {pair[0]},"
                " which holds the same words in another replica; change parameters"
                " alike in all replicas (by optimizers, penalties, nn.init), or load a"
                " checkpoint"
            )

    def _take_statistics(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """One message with all buffers that this pass may change, as bytes."""
        taken = [
            tensors[key] for key, module in self.buffers.items() if module.training
        ]
        taken = [each for each in taken if each.numel()]
        if not taken:
            return
        words = [each.detach().contiguous().view(-1) for each in taken]
        flat = torch.cat([each.view(torch.uint8) for each in words])
        dist.broadcast(flat, src=self.first, group=self.group)
        sizes = [each.numel() * each.element_size() for each in taken]
        for own, part in zip(taken, torch.split(flat, sizes), strict=True):
            # in training no backward pass reads them, so autograd need not know
            own.data.copy_(part.clone().view(own.dtype).view(own.shape))


def whole_gradient(where: Partition) -> tuple[tuple[int, ...], Spread | None]:
    """The holders, and the place in a bucket, of what gets whole gradients everywhere.

    Copies must remain equal bit by bit. So one copy in each replica gives its words,
    and all get the same sum: those with an equal box, or all if boxes overlap in part.
    """
    boxes = where.layout.boxes
    holders = [index for index, box in enumerate(boxes) if volume(box)]
    span = where.frame
    if where.disjoint:
        holders = [index for index in holders if boxes[index] == where.box]
        span = where.box
    if len(holders) == 1:
        return tuple(holders), None
    return tuple(holders), Spread(where.box, span, where.counted)


def agreeing(ranks: Ranks, name: str) -> Ranks:
    """The same ranks, which agree before they communicate: in each replica, and all.

    name: of the model, for messages.
    """
    if ranks.agreement is not None:
        return ranks
    if not isinstance(ranks, AbsentRanks):
        name = f"network {number_of_network(ranks.everyone.members)}, {name}"
    groups = ProcessGroups(ranks, reused=True)
    groups.meet()
    found = replace(ranks, agreement=Agreement(ranks.members, groups, name=name))
    if ranks.replicas is None:
        return found
    return replace(found, replicas=_agreeing_replicas(ranks.replicas, name))


def _agreeing_replicas(replicas: Replicas, name: str) -> Replicas:
    """The ranks with one index hold the same words."""
    everyone = replicas.everyone
    groups = ProcessGroups(everyone, reused=True)
    groups.meet()
    columns = zip(*replicas.rows, strict=True)
    alike = [[everyone.members.index(rank) for rank in column] for column in columns]
    agreement = Agreement(everyone.members, groups, alike, name)
    return replace(replicas, everyone=replace(everyone, agreement=agreement))
