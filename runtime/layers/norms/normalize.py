"""Normalize, scale and shift the channels of shards, with gradients of all three."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from synth.runtime.comm.shared_parts import zero_but_owned
from synth.runtime.kernels.channel_sums import channel_sums, per_channel

if TYPE_CHECKING:
    from synth.runtime.layers.norms.batch_norm import BatchNorm


class Normalize(torch.autograd.Function):
    """Normalize, scale and shift; the backward pass sums over the words of the group.

    batch: whether mean and variance are those of the batch, and so depend on it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shard: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        norm: BatchNorm,
        batch: bool,
    ) -> torch.Tensor:
        """The normalized shard."""
        ctx.norm, ctx.batch, ctx.eps = norm, batch, norm.eps
        ctx.save_for_backward(shard, weight, mean, variance)
        return normalized(shard, weight, bias, mean, variance, norm.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of shard, weight and bias; of the last two parts if local."""
        shard, weight, mean, variance = ctx.saved_tensors
        norm, asked = ctx.norm, ctx.needs_input_grad
        scale = torch.ones_like(mean) if weight is None else weight
        wanted = any(asked[1:3]) or ctx.batch
        exchanged = ctx.batch and asked[0] if norm.local else wanted
        if wanted and shard.numel():
            sums = torch.stack(channel_sums(dout, shard, mean, variance, ctx.eps))
        else:
            sums = mean.new_zeros(2, len(mean))
        own = sums
        if exchanged:
            sums = norm.shared.sums(sums.unsqueeze(1)).squeeze(1)
        dshift, dscale = sums
        dshard = None
        if asked[0]:
            inverse = torch.rsqrt(variance + ctx.eps)
            each = scale * inverse
            if ctx.batch:
                per_word = each / -norm.shared.group_words
                slope = inverse.mul_(dscale).mul_(per_word)
                offset = per_word.mul_(dshift).addcmul_(slope, mean, value=-1)
                # torch's evaluation kernel computes shard * slope + offset
                zero, one = norm.zeros_and_ones(mean)
                wide = shard.to(mean.dtype)
                dshard = normalized(wide, slope, offset, zero, one, 0.0)
                dshard = zero_but_owned(dshard, norm.owned, norm.layout)
                more = dout.to(mean.dtype)
                dshard = dshard.addcmul_(more, per_channel(each, shard))
            else:
                dshard = dout * per_channel(each, shard)
            dshard = dshard.to(shard.dtype)
        dbias, dweight = own if norm.local else sums
        given = dshard, dweight if asked[1] else None, dbias if asked[2] else None
        return *given, None, None, None, None


def normalized(
    shard: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """(shard - mean) / sqrt(variance + eps) * weight + bias, channel by channel."""
    if not shard.numel():
        return shard.clone()
    return nn.functional.batch_norm(shard, mean, variance, weight, bias, False, 0, eps)
