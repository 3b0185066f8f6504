"""Random numbers that all ranks draw alike, from a seed of each pass.

A pass that draws takes one number of torch's generator, as a pass in one process takes
many. So a pass repeats its numbers behind `torch.manual_seed`, `set_rng_state` or
`fork_rng`, as there. They are not those that one process would draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from synth.runtime.grid.ranks import Ranks

BETWEEN_REPLICAS = 0x61C88647  # odd, so that all replicas have seeds of their own
PLACES = 2**20  # more than the steps of a network that draw


class Drawing(nn.Module):
    """What draws random numbers. seed: of this pass and this place in the network; a
    tensor while a pass is traced.
    """

    seed: Any = 0

    @property
    def draws_now(self) -> bool:
        """Whether the next pass draws."""
        return True


class Draws(Drawing):
    """Random numbers that are the same on all ranks, whatever their generators are."""

    @contextmanager
    def alike(self, device: torch.device) -> Iterator[None]:
        """Draw from these numbers in here."""
        devices = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(devices, device_type=device.type):
            torch.manual_seed(self.seed)
            yield


class Seeds:
    """The seeds of the passes of a network.

    modules: of all steps, in one order on all ranks. now: that of the pass, from which
    those of all places follow.
    """

    def __init__(self, modules: Iterable[nn.Module], ranks: Ranks) -> None:
        self.ranks, self.told, self.now = ranks, False, 0
        self.drawing = [each for each in modules if isinstance(each, Drawing)]

    def offer(self, device: torch.device) -> bool:
        """Draw a number, if the pass draws, which goes with the next message.

        device: whose generator the pass would use in one process. Returns whether a
        number was drawn.
        """
        draws = self.draws_now
        number = int(torch.randint(2**31, (), device=device)) if draws else 0
        self.ranks.agreement.number = number
        return draws

    def take(self) -> None:
        """Give all places the seeds that follow from the first rank's number.

        The first rank warns, once, if another has drawn another one.
        """
        agreed = self.ranks.agreement
        first = agreed.first_number
        replica = 0 if self.ranks.replicas is None else self.ranks.replicas.me
        self.now = (first + replica * BETWEEN_REPLICAS) % 2**31
        self.give(self.now)
        if self.ranks.reports and not self.told and agreed.numbers_differ:
            self.told = True
            warnings.warn(
                f"the generators of the ranks differ: all ranks draw dropout from that"
                f" of rank {self.ranks.rank}; call torch.manual_seed with one number on"
                " all ranks to repeat a pass from any of them",
                stacklevel=2,
            )

    def give(self, now: Any) -> None:
        """Give all places the seeds that follow from a number, or a tensor of one."""
        for place, each in enumerate(self.drawing):
            each.seed = now * PLACES + place

    @property
    def draws_now(self) -> bool:
        """Whether the next pass draws."""
        return any(each.draws_now for each in self.drawing)
