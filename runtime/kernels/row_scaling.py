"""Rows of a shard, scaled and shifted by numbers per sample and channel; their sums.

Shards are (b, c, *spatial), numbers are (b, c).
"""

from __future__ import annotations

import torch

from synth.runtime.kernels.channel_sums import channel_sums


def normalized_rows(
    shard: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Normalized by a mean and variance per sample and channel, scaled and shifted.

    weight and bias: one word per channel.
    """
    if _suits_batch_norm(shard, mean):
        scale, shift = _of_rows(weight, len(shard)), _of_rows(bias, len(shard))
        return _by_batch_norm(shard, mean, variance, scale, shift, eps)
    inverse = torch.rsqrt(variance + eps)
    slope = inverse if weight is None else inverse * weight
    offset = -mean * slope
    return scaled_rows(shard, slope, offset if bias is None else offset + bias)


def scaled_rows(
    shard: torch.Tensor, slope: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """shard * slope + offset, with a number per sample and channel; one pass."""
    if _suits_batch_norm(shard, slope):
        zero, one = torch.zeros_like(slope), torch.ones_like(slope)
        return _by_batch_norm(shard, zero, one, slope.flatten(), offset.flatten(), 0.0)
    each = (*slope.shape, *[1] * (shard.dim() - 2))
    return torch.addcmul(offset.reshape(each), shard, slope.reshape(each))


def _suits_batch_norm(shard: torch.Tensor, numbers: torch.Tensor) -> bool:
    """Whether torch's evaluation kernel of batch normalization computes the rows.

    On a CPU it is faster than `addcmul`.
    """
    same = shard.dtype == numbers.dtype and not shard.is_cuda
    return same and shard.numel() > 0 and shard.is_contiguous()


def _of_rows(each: torch.Tensor | None, samples: int) -> torch.Tensor | None:
    """One word per sample and channel, from one per channel."""
    return each if each is None or samples == 1 else each.repeat(samples)


def _by_batch_norm(
    shard: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Rows as the channels of one sample. weight and bias: one word per row."""
    rows = torch.batch_norm(
        shard.view(1, mean.numel(), -1),
        *(weight, bias, mean.flatten(), variance.flatten()),
        *(False, 0.0, eps, False),
    )
    return rows.view(shard.shape)


def row_sums(
    dout: torch.Tensor,
    shard: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of dOut, and of dOut times the normalized shard, by sample and channel."""
    if not shard.numel():
        return torch.zeros_like(mean), torch.zeros_like(mean)
    rows = 1, mean.numel(), -1
    by_shift, by_scale = channel_sums(
        dout.reshape(rows), shard.reshape(rows), mean.flatten(), variance.flatten(), eps
    )
    return by_shift.view(mean.shape), by_scale.view(mean.shape)
