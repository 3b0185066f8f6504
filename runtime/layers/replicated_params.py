"""Parameters outside of planned layers: every rank holds what its share needs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.comm.redistribute import Agree, Count, Layout, SumBack, one_owner
from synth.runtime.grid.boxes import within
from synth.runtime.grid.scatter_gather import gather_shares


class Held(nn.Module):
    """Parameters and buffers by name; several ranks may hold the same words.

    values: entry -> the whole, alike on all ranks.
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
        self.owners = {name: one_owner(lies) for name, lies in layouts.items()}
        for name, whole in values.items():
            own = _cut(whole, self.layouts[name]).clone()
            if isinstance(whole, nn.Parameter):
                kept = nn.Parameter(own, requires_grad=whole.requires_grad)
                self.register_parameter(name, kept)
            else:
                self.register_buffer(name, own)

    def own(self, name: str) -> torch.Tensor:
        """The own box of an entry; its gradient is summed over all that hold it."""
        values: torch.Tensor = getattr(self, name)
        held, owned = self.layouts[name], self.owners[name]
        if values.requires_grad and not held.whole:  # all ranks hold the one word
            summed: torch.Tensor = SumBack.apply(values, None)  # type: ignore[no-untyped-call]
            return summed
        if not values.requires_grad or held.boxes == owned.boxes:
            return values
        agreed: torch.Tensor = Agree.apply(values, held, owned, self.count)  # type: ignore[no-untyped-call]
        return agreed

    def all(self) -> list[torch.Tensor]:
        """The own boxes of all entries, in their order."""
        return [self.own(name) for name in self.layouts]

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Whole values, on every rank."""
        state = {}
        grid = {"rank": dist.get_world_size()}
        for name, lies in self.layouts.items():
            own = getattr(self, name).detach()
            state[name] = gather_shares(own, lies.box, lies.whole, grid)
        return state

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own boxes of whole values."""
        for name, lies in self.layouts.items():
            with torch.no_grad():
                getattr(self, name).copy_(_cut(state[name], lies))


def _cut(whole: torch.Tensor, lies: Layout) -> torch.Tensor:
    frame = tuple((0, extent) for extent in lies.whole)
    return whole.detach()[within(lies.mine, frame)]
