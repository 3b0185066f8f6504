"""Random numbers that all ranks draw alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from synth.runtime.grid.ranks import Ranks


class Draws(nn.Module):
    """Random numbers that are the same on all ranks, whatever their generators are.

    As for dropout, they depend on a seed of the first rank's generator and on how often
    the call was made. They are not those that one process would draw.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()  # of its step, so that a checkpoint draws the same again
        self.seed = ranks.seed()
        self.calls = 0

    @contextmanager
    def alike(self, device: torch.device) -> Iterator[None]:
        """Draw from these numbers in here."""
        self.calls += 1
        devices = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(devices, device_type=device.type):
            torch.manual_seed(self.seed * 2**20 + self.calls)
            yield
