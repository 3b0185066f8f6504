"""LayerNorm over the last dimension, which ranks may cut.

Ranks that share rows combine what they have of them; see `Moments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count
from synth.runtime.comm.shared_parts import Moments
from synth.runtime.grid.boxes import volume
from synth.runtime.kernels.autocast import no_autocast, operator_dtype
from synth.runtime.layers.norms.group_norm import affine_params, own_params
from synth.runtime.layers.steps.held import Held


class LayerNorm(nn.Module):
    """`torch.nn.LayerNorm` over the last dimension, which may be cut."""

    def __init__(
        self, plain: Any, layout: Layout, process_groups: ProcessGroups, count: Count
    ) -> None:
        super().__init__()
        self.eps, self.words = plain.eps, layout.whole[-1]
        self.cut = any(
            box[-1] != (0, self.words) for box in layout.boxes if volume(box)
        )
        self.moments: Moments | None = None
        if self.cut:
            rows = (1,) * (len(layout.whole) - 1)
            self.moments = Moments(layout, rows, process_groups, count)
        self.affine = affine_params(plain, layout, -1, count)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The normalized shard. Raises `ValueError` for dtypes that torch refuses."""
        held = own_params(self.affine)
        dtype = operator_dtype("layer normalization", _layer_norm, shard, *held)
        if shard.numel() and not self.cut:
            extents = shard.shape[-1:]
            return functional.layer_norm(shard, extents, *held, self.eps)
        with no_autocast(shard.device):
            out = shard.to(sum_dtype(shard.dtype))
            if self.moments is not None:  # else it has no words
                out = NormalizeRows.apply(out, self.eps, self.moments)  # type: ignore[no-untyped-call]
            return scale_and_shift(out, *held, -1).to(dtype)

    def held_tensors(self) -> dict[str, Held]:
        """Weight and bias."""
        return self.affine.held_tensors()

    def exchanges(self) -> list[Exchange]:
        """Two numbers per row in each pass if rows are cut, and gradients as above."""
        shared = [] if self.moments is None else self.moments.exchanges()
        return [*shared, *self.affine.exchanges()]


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


def _layer_norm(
    word: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    return functional.layer_norm(word.expand(2, 1), (1,), weight, bias)
