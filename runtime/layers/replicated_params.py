"""Parameters outside planned layers: each rank holds what its shards need."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from synth.runtime.comm.layout import Layout, one_owner
from synth.runtime.comm.redistribute import Count, SumCopies, SumGradient
from synth.runtime.grid.boxes import within
from synth.runtime.grid.scatter_gather import gather_shards


class ReplicatedParams(nn.Module):
    """Parameters and buffers by name. Several ranks may hold copies of the same words.

    values: entry -> the whole, the same on all ranks.
    layouts: entry -> the box of it that each rank holds.
    """

    def __init__(
        self,
        values: Mapping[str, torch.Tensor],
        layouts: Mapping[str, Layout],
        count: Count,
    ) -> None:
        super().__init__()
        self.layouts, self.count = dict(layouts), count
        self.owners = {name: one_owner(layout) for name, layout in layouts.items()}
        for name, whole in values.items():
            own = _cut(whole, self.layouts[name]).clone()
            if isinstance(whole, nn.Parameter):
                parameter = nn.Parameter(own, requires_grad=whole.requires_grad)
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, own)

    def own(self, name: str) -> torch.Tensor:
        """The own box of an entry. Its gradient is summed over all copies."""
        values: torch.Tensor = getattr(self, name)
        held, owned = self.layouts[name], self.owners[name]
        if values.requires_grad and not held.whole:  # all ranks hold the scalar
            summed: torch.Tensor = SumGradient.apply(values, held.ranks.group)  # type: ignore[no-untyped-call]
            return summed
        if not values.requires_grad or held.boxes == owned.boxes:
            return values
        copied: torch.Tensor = SumCopies.apply(values, held, owned, self.count)  # type: ignore[no-untyped-call]
        return copied

    def all(self) -> list[torch.Tensor]:
        """The own boxes of all entries, in their order."""
        return [self.own(name) for name in self.layouts]

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The whole values, on every rank."""
        state = {}
        for name, layout in self.layouts.items():
            own = getattr(self, name).detach()
            state[name] = gather_shards(own, layout.boxes, layout.whole, layout.ranks)
        return state

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Copy the own boxes of whole values."""
        for name, layout in self.layouts.items():
            with torch.no_grad():
                getattr(self, name).copy_(_cut(state[name], layout))


def _cut(whole: torch.Tensor, layout: Layout) -> torch.Tensor:
    frame = tuple((0, extent) for extent in layout.whole)
    return whole.detach()[within(layout.mine, frame)]
