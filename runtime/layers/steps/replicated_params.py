"""Parameters outside planned layers: each rank holds what its shards need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.exchanges import Exchange, copied
from synth.runtime.comm.layout import Layout, one_owner
from synth.runtime.comm.redistribute import Count, sum_copies, sum_gradient
from synth.runtime.layers.steps.held import Held, declare
from synth.runtime.tensor.partition import Partition


class ReplicatedParams(nn.Module):
    """Parameters and buffers by name. Several ranks may hold copies of the same words.

    values: entry -> the whole of the user's model, whose words are bound later, or None
    for one that there is not. layouts: entry -> the box of it that each rank holds.
    in_buckets: whether all ranks hold all words, and buckets sum the gradients.
    """

    def __init__(
        self,
        values: Mapping[str, torch.Tensor | None],
        layouts: Mapping[str, Layout],
        count: Count,
        in_buckets: bool = False,
    ) -> None:
        super().__init__()
        there = {name: whole for name, whole in values.items() if whole is not None}
        self.names, self.count, self.in_buckets = tuple(layouts), count, in_buckets
        self.layouts = {name: layouts[name] for name in there}
        self.owners = {name: one_owner(each) for name, each in self.layouts.items()}
        for name, whole in there.items():
            declare(self, name, whole)

    def own(self, name: str) -> torch.Tensor:
        """The own box of an entry. Its gradient is summed over all copies."""
        values: torch.Tensor = getattr(self, name)
        held, owned = self.layouts[name], self.owners[name]
        if not values.requires_grad or held.ranks.size == 1 or self.in_buckets:
            return values
        if not held.whole:  # all ranks hold the scalar
            return sum_gradient(values, held.ranks.group)
        if held.boxes == owned.boxes:
            return values
        return sum_copies(values, held, owned, self.count)

    def all(self) -> list[Any]:
        """The own boxes of all entries, in their order; None for those without."""
        return [self.own(n) if n in self.layouts else None for n in self.names]

    def exchanges(self) -> list[Exchange]:
        """The sums of the gradients, but of single words, and those of buckets."""
        found: list[Exchange] = []
        for name, held in self.layouts.items():
            if held.whole and not self.in_buckets:
                found += copied(held, self.owners[name], name)
        return found

    def held_tensors(self) -> dict[str, Held]:
        """All entries."""
        ranks = next(iter(self.layouts.values())).ranks.size if self.layouts else 0
        copies = tuple(range(ranks)) if self.in_buckets else ()
        return {
            name: Held(self, name, Partition(layout), copies)
            for name, layout in self.layouts.items()
        }
