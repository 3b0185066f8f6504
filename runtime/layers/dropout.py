"""Dropout that is the same on every grid: a word's mask is a function of its place.

The mask depends on a seed, on how often the layer ran, and on the place of the word in
the whole tensor. So P ranks drop what one rank would drop. The mask is not the one that
torch would draw.
"""

from __future__ import annotations

import torch
from torch import nn

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import shape

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIXES = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


class Dropout(nn.Module):
    """`torch.nn.Dropout` on shards; with `dims` 2 whole channels, as `Dropout1d/2d/3d`.

    The seed is drawn from the first rank's generator when the layer is created.
    """

    def __init__(self, p: float, layout: Layout, dims: int | None = None) -> None:
        super().__init__()
        self.p, self.calls = p, 0
        dims = len(layout.whole) if dims is None else dims
        self.whole, self.box = layout.whole[:dims], layout.mine[:dims]
        self.each = (*shape(self.box), *[1] * (len(layout.whole) - dims))
        self.seed = layout.ranks.from_first(int(torch.randint(2**31, ())))

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard with words dropped, scaled so that the mean stays."""
        if not self.training or self.p == 0:
            return shard
        self.calls += 1
        if self.p == 1:
            return shard * 0
        drawn = draws(self.seed * 2**20 + self.calls, self.whole, self.box)
        keep = drawn >= int(self.p * 2**53)
        mask = keep.reshape(self.each).to(shard.device, shard.dtype)
        return shard * mask * (1 / (1 - self.p))  # the factor is not rounded to half


def draws(
    seed: int, whole: tuple[int, ...], box: tuple[tuple[int, int], ...]
) -> torch.Tensor:
    """A number from 0 to 2**53 for each word of a box: splitmix64 of seed and place."""
    place = torch.zeros((), dtype=torch.int64)
    for extent, (low, high) in zip(whole, box, strict=True):
        place = place.unsqueeze(-1) * extent + torch.arange(low, high)
    return _mixed(_mixed(place) + _mixed(torch.tensor(seed))) & (2**53 - 1)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    numbers = numbers + GOLDEN
    for bits, factor in MIXES:  # `>>` is arithmetic, so clear the bits that it fills in
        numbers = (numbers ^ ((numbers >> bits) & (2 ** (64 - bits) - 1))) * factor
    return numbers ^ ((numbers >> 31) & (2**33 - 1))
