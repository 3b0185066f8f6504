"""Dropout that is the same on every grid: a word's mask is a function of its place.

The mask depends on the seed of the pass and on the place of the word in the whole
tensor. So P ranks drop what one rank would drop. The mask is not the one that
torch would draw.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import shape
from synth.runtime.layers.steps.draws import Drawing

CHUNK = 2**16  # words whose numbers are drawn at once; each takes 8 bytes
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIXES = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


class Dropout(Drawing):
    """`torch.nn.Dropout` on shards; with `dims` 2 whole channels, as `Dropout1d/2d/3d`.

    Each pass has a seed, and each replica one of its own.
    """

    def __init__(self, p: float, layout: Layout, dims: int | None = None) -> None:
        super().__init__()
        self.p = p
        dims = len(layout.whole) if dims is None else dims
        self.whole, self.box = layout.whole[:dims], layout.mine[:dims]
        self.each = (*shape(self.box), *[1] * (len(layout.whole) - dims))

    @property
    def draws_now(self) -> bool:
        """In training, unless nothing is dropped."""
        return self.training and self.p > 0

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard with words dropped, scaled so that the mean stays.

        Raises `ValueError` for a probability that is none.
        """
        if not 0 <= self.p <= 1:
            raise ValueError(
                f"dropout has p = {self.p}, which is no probability; give 0 to 1"
            )
        if not self.training or self.p == 0:
            return shard
        if self.p == 1:
            return shard * 0
        mask = self._kept(shard.device).reshape(self.each)
        dropped: torch.Tensor = Drop.apply(shard, mask, 1 / (1 - self.p))  # type: ignore[no-untyped-call]
        return dropped

    def _kept(self, device: torch.device) -> torch.Tensor:
        """Whether each word of the own box is kept; drawn in parts, to save memory."""
        seed, least = self.seed, int(self.p * 2**53)
        if not self.box or torch.compiler.is_compiling():  # a single word, or a graph
            return draws(seed, self.whole, self.box, device) >= least
        keep = torch.empty(shape(self.box), dtype=torch.bool, device=device)
        longest = max(range(len(self.box)), key=lambda dim: keep.shape[dim])
        low, high = self.box[longest]
        step = max(1, CHUNK * (high - low) // max(1, keep.numel()))
        for begin in range(low, high, step):
            end = min(begin + step, high)
            part = (*self.box[:longest], (begin, end), *self.box[longest + 1 :])
            drawn = draws(seed, self.whole, part, device) >= least
            keep.narrow(longest, begin - low, end - begin).copy_(drawn)
        return keep


class Drop(torch.autograd.Function):
    """Words of a mask times a number, others 0; it saves the mask, a byte per word."""

    @staticmethod
    def forward(
        ctx: Any, shard: torch.Tensor, mask: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """The words that are kept, scaled; the scale is not rounded to half."""
        ctx.scale = scale
        ctx.save_for_backward(mask)
        return (shard * mask).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradients of those words, scaled."""
        (mask,) = ctx.saved_tensors
        return (gradient * mask).mul_(ctx.scale), None, None


def draws(
    seed: Any,
    whole: tuple[int, ...],
    box: tuple[tuple[int, int], ...],
    device: torch.device | None = None,
) -> torch.Tensor:
    """A number from 0 to 2**53 for each word of a box: splitmix64 of seed and place.

    The same on all devices. seed: a number, or a tensor of one. device: None for the
    host.
    """
    place = torch.zeros((), dtype=torch.int64, device=device)
    for extent, (low, high) in zip(whole, box, strict=True):
        place = place.unsqueeze(-1) * extent + torch.arange(low, high, device=device)
    return _mixed(_mixed(place) + _mixed(torch.as_tensor(seed))) & (2**53 - 1)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    numbers = numbers + GOLDEN
    for bits, factor in MIXES:  # `>>` is arithmetic, so clear the bits that it fills in
        numbers = (numbers ^ ((numbers >> bits) & (2 ** (64 - bits) - 1))) * factor
    return numbers ^ ((numbers >> 31) & (2**33 - 1))
