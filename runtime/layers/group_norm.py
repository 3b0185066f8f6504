"""Normalization by mean and variance of parts of a sample: GroupNorm and LayerNorm.

All-reduce partial sums over the ranks that share a normalization group: two rounds, one
word per group in each.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.redistribute import (
    Count,
    Layout,
    one_owner,
    redistribute,
    sum_to_owners,
)
from synth.runtime.layers.replicated_params import ReplicatedParams


class SumOverHolders:
    """Adds partial sums over all ranks that hold a part of them; differentiable."""

    def __init__(self, held: Layout, count: Count) -> None:
        self.held, self.owned, self.count = held, one_owner(held), count

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        """The sums in the own box of `held`."""
        total = sum_to_owners(partial, self.held, self.owned, self.count)
        return redistribute(total, self.owned, self.held, self.count)


class GroupNorm(nn.Module):
    """`torch.nn.GroupNorm` on shards of (b, c, *spatial) with any layout.

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
        held = Layout((layout.whole[0], groups), boxes)
        self.sum_over_holders = SumOverHolders(held, count)
        low, high = layout.mine[1]
        self.first, self.last = held.mine[1]
        self.group = [channel // size - self.first for channel in range(low, high)]
        self.affine = affine_params(plain, layout, 1, count)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The normalized shard."""
        each = (*shard.shape[:2], *[1] * (shard.dim() - 2))
        group = torch.tensor(self.group, dtype=torch.int64, device=shard.device)
        mean = self._mean(shard, group)[:, group]
        centered = shard - mean.reshape(each)
        variance = self._mean(centered.square(), group)[:, group]
        result = centered * torch.rsqrt(variance + self.eps).reshape(each)
        return scale_and_shift(result, self.affine, 1)

    def _mean(self, values: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        """The means of the own samples and groups: (samples, groups)."""
        sums = values.flatten(2).sum(2)
        zeros = sums.new_zeros(sums.shape[0], self.last - self.first)
        partial = zeros.index_add(1, group, sums)
        return self.sum_over_holders(partial) / self.words

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What torch's own layer would save, on every rank."""
        return self.affine.full_state_dict()

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Copy the own channels of what torch's own layer saved."""
        self.affine.load_full_state_dict(state)


class LayerNorm(nn.Module):
    """`torch.nn.LayerNorm` over the last dimension, which may be cut."""

    def __init__(self, plain: Any, layout: Layout, count: Count) -> None:
        super().__init__()
        self.eps, self.words = plain.eps, layout.whole[-1]
        boxes = tuple(box[:-1] for box in layout.boxes)
        self.sum_over_holders = SumOverHolders(Layout(layout.whole[:-1], boxes), count)
        self.affine = affine_params(plain, layout, -1, count)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The normalized shard."""
        mean = self.sum_over_holders(shard.sum(-1)) / self.words
        centered = shard - mean.unsqueeze(-1)
        variance = self.sum_over_holders(centered.square().sum(-1)) / self.words
        result = centered * torch.rsqrt(variance + self.eps).unsqueeze(-1)
        return scale_and_shift(result, self.affine, -1)

    full_state_dict = GroupNorm.full_state_dict
    load_full_state_dict = GroupNorm.load_full_state_dict


def affine_params(
    plain: Any, layout: Layout, dim: int, count: Count
) -> ReplicatedParams:
    """The weight and bias of a layer, one word per position along a dimension."""
    given = {name: getattr(plain, name, None) for name in ("weight", "bias")}
    values = {name: each for name, each in given.items() if each is not None}
    each = Layout(layout.whole[dim:][:1], tuple((box[dim],) for box in layout.boxes))
    return ReplicatedParams(values, dict.fromkeys(values, each), count)


def scale_and_shift(
    values: torch.Tensor, params: ReplicatedParams, dim: int
) -> torch.Tensor:
    """Values times weight plus bias along a dimension, as far as there are any."""
    each = [1] * values.dim()
    each[dim] = -1
    if "weight" in params.layouts:
        values = values * params.own("weight").reshape(each)
    if "bias" in params.layouts:
        values = values + params.own("bias").reshape(each)
    return values
