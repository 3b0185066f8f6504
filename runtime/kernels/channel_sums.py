"""Sums over channels by torch's kernel of batch normalization, whatever the strides.

On a CPU the kernel reads its numbers per channel as if they were contiguous. It takes
gradient and input for laid alike if each of them is contiguous in some memory format.
Where extents are 1 they may still be laid differently, and then it reads other words.
Shards have extents of 1 more often than the tensors of one process.
"""

from __future__ import annotations

from typing import Any

import torch

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by dimensions


def memory_format(values: torch.Tensor) -> torch.memory_format:
    """Channels-last where values are, and are not contiguous, too."""
    last = CHANNELS_LAST.get(values.dim())
    if last is None or values.is_contiguous():
        return torch.contiguous_format
    is_last = values.is_contiguous(memory_format=last)
    return last if is_last else torch.contiguous_format


def channel_sums(
    dout: torch.Tensor,
    shard: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of dOut, and of dOut times the normalized shard, by channel.

    dout, shard: (b, c, *spatial) with at least one word. mean, variance: (c,), of the
    dtype of the results.
    """
    layout = memory_format(shard)
    rows = (each.contiguous(memory_format=layout) for each in (dout, shard))
    mean, variance = mean.contiguous(), variance.contiguous()
    _, by_scale, by_shift = torch.ops.aten.native_batch_norm_backward(
        *(*rows, torch.ones_like(mean), mean, variance, None, None),
        *(False, eps, [False, True, True]),
    )
    return by_shift, by_scale


def of_its_batch(
    shard: torch.Tensor,
    running: tuple[torch.Tensor | None, torch.Tensor | None],
    affine: tuple[torch.Tensor | None, torch.Tensor | None],
    rate: float,
    eps: float,
) -> torch.Tensor:
    """torch's batch normalization of a shard by its own statistics, under autograd.

    running: mean and variance that are updated, by `rate`. affine: weight and bias.
    """
    layout = memory_format(shard)
    given = shard.contiguous(memory_format=layout)
    out = torch.nn.functional.batch_norm(given, *running, *affine, True, rate, eps)
    if out.requires_grad:
        hook: Any = out.register_hook
        hook(lambda dout: dout.contiguous(memory_format=layout))
    return out


def per_channel(values: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """A value per channel, with the shape that broadcasts to (b, c, *spatial)."""
    return values.reshape(1, -1, *[1] * (shard.dim() - 2))
