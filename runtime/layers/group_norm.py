"""Normalization by the mean and variance of parts of a sample, on shares.

Sums are taken of what a rank has and added over the ranks that have other words of the
same part, wherever they are: two rounds of one word per part.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.redistribute import Count, Layout, collect, move, one_owner
from synth.runtime.layers.replicated_params import Held


class Sums:
    """Partial sums of ranks become whole sums on all that hold a part of them."""

    def __init__(self, held: Layout, count: Count) -> None:
        self.held, self.owned, self.count = held, one_owner(held), count

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        """The whole sums in the own box."""
        total = collect(partial, self.held, self.owned, self.count)
        return move(total, self.owned, self.held, self.count)


class GroupNorm(nn.Module):
    """`torch.nn.GroupNorm` on shares of (b, c, *spatial), however they are cut.

    With as many groups as channels it is `torch.nn.InstanceNorm1d/2d/3d`.
    plain: has `eps` and, unless None, `weight` and `bias` of shape (c,).
    """

    def __init__(self, plain: Any, groups: int, layout: Layout, count: Count) -> None:
        super().__init__()
        self.eps, size = plain.eps, layout.whole[1] // groups
        self.words = size * math.prod(layout.whole[2:])  # per sample and group
        boxes = tuple(
            (box[0], (box[1][0] // size, -(-box[1][1] // size))) for box in layout.boxes
        )
        self.sums = Sums(Layout((layout.whole[0], groups), boxes), count)
        self.samples, (low, high) = layout.mine[0], layout.mine[1]
        (self.first, self.last) = self.sums.held.mine[1]
        self.group = [channel // size - self.first for channel in range(low, high)]
        self.affine = affine(plain, layout, 1, count)

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The normalized share."""
        each = (*share.shape[:2], *[1] * (share.dim() - 2))
        group = torch.tensor(self.group, dtype=torch.int64, device=share.device)
        mean = self._mean(share, group)[:, group]
        centered = share - mean.reshape(each)
        variance = self._mean(centered.square(), group)[:, group]
        result = centered * torch.rsqrt(variance + self.eps).reshape(each)
        return scaled(result, self.affine, 1)

    def _mean(self, values: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        """(own samples, groups that own channels are of)."""
        sums = values.flatten(2).sum(2)
        zeros = sums.new_zeros(sums.shape[0], self.last - self.first)
        return self.sums(zeros.index_add(1, group, sums)) / self.words

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What torch's own layer would save, on every rank."""
        return self.affine.full_state_dict()

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own channels of what torch's own layer saved."""
        self.affine.load_full_state_dict(state)


class LayerNorm(nn.Module):
    """`torch.nn.LayerNorm` over the last dimension, on shares that may cut it."""

    def __init__(self, plain: Any, layout: Layout, count: Count) -> None:
        super().__init__()
        self.eps, self.words = plain.eps, layout.whole[-1]
        boxes = tuple(box[:-1] for box in layout.boxes)
        self.sums = Sums(Layout(layout.whole[:-1], boxes), count)
        self.affine = affine(plain, layout, -1, count)

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The normalized share."""
        centered = share - (self.sums(share.sum(-1)) / self.words).unsqueeze(-1)
        variance = self.sums(centered.square().sum(-1)) / self.words
        result = centered * torch.rsqrt(variance + self.eps).unsqueeze(-1)
        return scaled(result, self.affine, -1)

    full_state_dict = GroupNorm.full_state_dict
    load_full_state_dict = GroupNorm.load_full_state_dict


def affine(plain: Any, layout: Layout, dim: int, count: Count) -> Held:
    """The weight and bias of a layer, one word per position along a dimension."""
    given = {name: getattr(plain, name, None) for name in ("weight", "bias")}
    values = {name: each for name, each in given.items() if each is not None}
    each = Layout(layout.whole[dim:][:1], tuple((box[dim],) for box in layout.boxes))
    return Held(values, dict.fromkeys(values, each), count)


def scaled(values: torch.Tensor, by: Held, dim: int) -> torch.Tensor:
    """Values times weight plus bias, as far as there are any, along a dimension."""
    each = [1] * values.dim()
    each[dim] = -1
    if "weight" in by.layouts:
        values = values * by.own("weight").reshape(each)
    if "bias" in by.layouts:
        values = values + by.own("bias").reshape(each)
    return values
