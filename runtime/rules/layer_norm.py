"""LayerNorm over the last dimension, which ranks may cut.

Ranks that share rows combine what they have of them; see `Moments`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count
from synth.runtime.comm.shared_parts import Moments
from synth.runtime.grid.boxes import volume
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.rules.rule import Operand, Rule


def layer_norm(
    eps: Callable[[], float],
    operator: Operator,
    layout: Layout,
    process_groups: ProcessGroups,
    count: Count,
) -> Rule:
    """The rule of `torch.nn.LayerNorm` over the last dimension, which may be cut.

    eps: gives what is added to the variance. operator: of torch, called with one word.
    """
    rows, words = (1,) * (len(layout.whole) - 1), layout.whole[-1]
    moments = None
    if any(box[-1] != (0, words) for box in layout.boxes if volume(box)):
        moments = Moments(layout, rows, process_groups, count)

    def call(
        shard: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        dtype = operator_dtype("layer normalization", operator, shard, weight, bias)
        if shard.numel() and moments is None:
            extents = shard.shape[-1:]
            return functional.layer_norm(shard, extents, weight, bias, eps())
        with no_autocast(shard.device):
            out = shard.to(sum_dtype(shard.dtype))
            if moments is not None:  # else it has no words
                out = NormalizeRows.apply(out, eps(), moments)  # type: ignore[no-untyped-call]
            out = out if weight is None else out * weight
            return (out if bias is None else out + bias).to(dtype)

    return Rule(layout, (Operand(layout, layout),), call, moments)


class NormalizeRows(torch.autograd.Function):
    """Rows of which ranks have parts, minus their mean, by their standard deviation."""

    @staticmethod
    def forward(
        ctx: Any, shard: torch.Tensor, eps: float, moments: Moments
    ) -> torch.Tensor:
        """The own part of the normalized rows."""
        own = shard.new_zeros(2, *shard.shape[:-1])
        if shard.numel():
            own[0] = shard.mean(-1)
            own[1] = (shard - own[0].unsqueeze(-1)).square_().mean(-1)
        mean, variance = moments.moments(own)
        inverse = torch.rsqrt(variance + eps).unsqueeze(-1)
        out: torch.Tensor = (shard - mean.unsqueeze(-1)).mul_(inverse)
        ctx.moments = moments
        ctx.save_for_backward(out, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient of the shard."""
        out, inverse = ctx.saved_tensors
        sums = torch.stack([dout.sum(-1), (dout * out).sum(-1)])
        shift, slope = (ctx.moments.sums(sums) / ctx.moments.group_words).unsqueeze(-1)
        return (dout - shift).addcmul_(out, slope, value=-1).mul_(inverse), None, None
