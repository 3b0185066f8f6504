"""Normalization by mean and variance of parts of a sample: GroupNorm and LayerNorm.

All-reduce partial sums over the ranks that share a normalization group: two rounds, one
word per group in each. Half precision is normalized in float32 and rounded once, as
torch does. The sums that travel are words of float32 then.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from synth.runtime.comm.exchanges import Exchange, around, times
from synth.runtime.comm.layout import Layout, one_owner
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.redistribute import Count, redistribute, sum_to_owners
from synth.runtime.grid.boxes import volume
from synth.runtime.kernels.autocast import no_autocast, operator_dtype
from synth.runtime.kernels.moments import moments, words_per_row
from synth.runtime.layers.held import Held
from synth.runtime.layers.replicated_params import ReplicatedParams


class SumOverHolders:
    """Adds partial sums over all ranks that hold a part of them; differentiable."""

    def __init__(self, held: Layout, count: Count) -> None:
        self.held, self.owned, self.count = held, one_owner(held), count

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        """The sums in the own box of `held`."""
        total = sum_to_owners(partial, self.held, self.owned, self.count)
        return redistribute(total, self.owned, self.held, self.count)

    def exchanges(self, number: int) -> list[Exchange]:
        """Those of so many sums, and of as many in the backward pass."""
        words = times(number, around(self.held, self.owned))
        return [Exchange(words, words)]


class GroupNorm(nn.Module):
    """`torch.nn.GroupNorm` on shards of (b, c, *spatial) with any layout.

    With as many groups as channels it is `torch.nn.InstanceNorm1d/2d/3d`.
    plain: has `eps` and, unless None, `weight` and `bias` of shape (c,).
    """

    def __init__(self, plain: Any, groups: int, layout: Layout, count: Count) -> None:
        super().__init__()
        self.eps, size = plain.eps, layout.whole[1] // groups
        self.words = size * math.prod(layout.whole[2:])  # per sample and group
        boxes = (
            (box[0], (box[1][0] // size, -(-box[1][1] // size))) for box in layout.boxes
        )
        held = layout.with_boxes((layout.whole[0], groups), boxes)
        self.sum_over_holders = SumOverHolders(held, count)
        low, high = layout.mine[1]
        self.first, self.last = held.mine[1]
        self.group = [channel // size - self.first for channel in range(low, high)]
        self.affine = affine_params(plain, layout, 1, count)
        instances = isinstance(plain, nn.modules.instancenorm._InstanceNorm)
        self.operator = _instance_norm if instances else _group_norm

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The normalized shard. Raises `ValueError` for dtypes that torch refuses."""
        held = own_params(self.affine)
        dtype = operator_dtype("group normalization", self.operator, shard, *held)
        wide = sum_dtype(dtype)
        weight, bias = (each if each is None else each.to(wide) for each in held)
        with no_autocast(shard.device):
            out: torch.Tensor = NormalizeGroups.apply(  # type: ignore[no-untyped-call]
                shard.to(dtype), weight, bias, self
            )
        return out

    def held_tensors(self) -> dict[str, Held]:
        """Weight and bias."""
        return self.affine.held_tensors()

    def exchanges(self) -> list[Exchange]:
        """The two sums of each pass, and the gradients of weight and bias."""
        return self.sum_over_holders.exchanges(2) + self.affine.exchanges()

    def statistics(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and 1 / standard deviation of each own sample and channel's group.

        The parts of the ranks are combined as in Chan, Golub and LeVeque (1983).
        """
        if shard.numel():
            own, squares = moments(shard)
        else:
            own = squares = shard.new_zeros(shard.shape[:2])
        words = words_per_row(shard)
        mean = self.group_sums(own * words) / self.words
        squares = squares + words * (own - mean).square()
        variance = self.group_sums(squares) / self.words
        return mean, torch.rsqrt(variance + self.eps)

    def group_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over whole groups of a number per own sample and channel, for each."""
        group = torch.tensor(self.group, dtype=torch.int64, device=values.device)
        zeros = values.new_zeros(values.shape[0], self.last - self.first)
        return self.sum_over_holders(zeros.index_add(1, group, values))[:, group]


class NormalizeGroups(torch.autograd.Function):
    """Normalize, scale and shift by the moments of groups; it saves its input alone."""

    @staticmethod
    def forward(
        ctx: Any,
        shard: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        norm: GroupNorm,
    ) -> torch.Tensor:
        """The normalized shard."""
        mean, inverse = norm.statistics(shard.to(sum_dtype(shard.dtype)))
        ctx.norm = norm
        ctx.save_for_backward(shard, weight, mean, inverse)
        slope = inverse if weight is None else inverse * weight
        offset = -mean * slope
        offset = offset if bias is None else offset + bias
        return scaled_rows(shard, slope, offset).to(shard.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of shard, weight and bias; the latter of the own samples alone."""
        shard, weight, mean, inverse = ctx.saved_tensors
        norm, asked = ctx.norm, ctx.needs_input_grad
        by_shift, by_scale = row_sums(dout, shard, mean, inverse)
        dshard = None
        if asked[0]:
            scale = torch.ones_like(mean) if weight is None else weight.expand_as(mean)
            shift = norm.group_sums(scale * by_shift) / norm.words
            slope = norm.group_sums(scale * by_scale) / -norm.words * inverse.square()
            dshard = scaled_rows(shard, slope, -shift * inverse - slope * mean)
            each = (scale * inverse).reshape(*mean.shape, *[1] * (shard.dim() - 2))
            dshard = dshard.addcmul_(dout.to(dshard.dtype), each).to(shard.dtype)
        dweight = by_scale.sum(0) if asked[1] else None
        return dshard, dweight, by_shift.sum(0) if asked[2] else None, None


def scaled_rows(
    shard: torch.Tensor, slope: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """shard * slope + offset, with a number per sample and channel; one pass."""
    each = (*slope.shape, *[1] * (shard.dim() - 2))
    return torch.addcmul(offset.reshape(each), shard, slope.reshape(each))


def row_sums(
    dout: torch.Tensor, shard: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of dOut, and of dOut times the normalized shard, by sample and channel."""
    if not shard.numel():
        return torch.zeros_like(mean), torch.zeros_like(mean)
    rows, one = (1, mean.numel(), -1), torch.ones_like(mean).flatten()
    variance = inverse.flatten().square().reciprocal()
    _, by_scale, by_shift = torch.ops.aten.native_batch_norm_backward(
        *(dout.reshape(rows), shard.reshape(rows), one, mean.flatten(), variance),
        *(None, None, False, 0.0, [False, True, True]),
    )
    return by_shift.view_as(mean), by_scale.view_as(mean)


class LayerNorm(nn.Module):
    """`torch.nn.LayerNorm` over the last dimension, which may be cut."""

    def __init__(self, plain: Any, layout: Layout, count: Count) -> None:
        super().__init__()
        self.eps, self.words = plain.eps, layout.whole[-1]
        self.cut = any(
            box[-1] != (0, self.words) for box in layout.boxes if volume(box)
        )
        boxes = (box[:-1] for box in layout.boxes)
        held = layout.with_boxes(layout.whole[:-1], boxes)
        self.sum_over_holders = SumOverHolders(held, count)
        self.affine = affine_params(plain, layout, -1, count)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The normalized shard. Raises `ValueError` for dtypes that torch refuses."""
        held = own_params(self.affine)
        dtype = operator_dtype("layer normalization", _layer_norm, shard, *held)
        if shard.numel() and not self.cut:
            extents = shard.shape[-1:]
            return functional.layer_norm(shard, extents, *held, self.eps)
        with no_autocast(shard.device):
            wide = shard.to(sum_dtype(shard.dtype))
            out = self._normalized(wide) if self.cut else wide  # it has no words
            return scale_and_shift(out, *held, -1).to(dtype)

    def _normalized(self, shard: torch.Tensor) -> torch.Tensor:
        mean = self.sum_over_holders(shard.sum(-1)) / self.words
        centered = shard - mean.unsqueeze(-1)
        variance = self.sum_over_holders(centered.square().sum(-1)) / self.words
        return centered * torch.rsqrt(variance + self.eps).unsqueeze(-1)

    def held_tensors(self) -> dict[str, Held]:
        """Weight and bias."""
        return self.affine.held_tensors()

    def exchanges(self) -> list[Exchange]:
        """Two sums in each pass if the dimension is cut, and gradients as above."""
        sums = self.sum_over_holders.exchanges(2) if self.cut else []
        return sums + self.affine.exchanges()


def affine_params(
    plain: Any, layout: Layout, dim: int, count: Count
) -> ReplicatedParams:
    """The weight and bias of a layer, one word per position along a dimension."""
    given = {name: getattr(plain, name, None) for name in ("weight", "bias")}
    values = {name: each for name, each in given.items() if each is not None}
    each = layout.with_boxes(
        layout.whole[dim:][:1], ((box[dim],) for box in layout.boxes)
    )
    return ReplicatedParams(values, dict.fromkeys(values, each), count)


def own_params(
    params: ReplicatedParams,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The own weight and bias; None for what there is not."""
    weight = params.own("weight") if "weight" in params.layouts else None
    return weight, params.own("bias") if "bias" in params.layouts else None


def scale_and_shift(
    values: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    dim: int,
) -> torch.Tensor:
    """Values times weight plus bias along a dimension, as far as there are any."""
    each = [1] * values.dim()
    each[dim] = -1
    if weight is not None:
        values = values * weight.reshape(each)
    if bias is not None:
        values = values + bias.reshape(each)
    return values


# -- torch's own operators, of one word ------------------------------------------------


def _group_norm(
    word: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    return functional.group_norm(word.expand(2, 1, 2), 1, weight, bias)


def _instance_norm(
    word: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    batch = word.expand(2, 1, 2)
    return functional.instance_norm(batch, weight=weight, bias=bias)


def _layer_norm(
    word: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    return functional.layer_norm(word.expand(2, 1), (1,), weight, bias)
