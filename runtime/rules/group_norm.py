"""Normalization by mean and variance of groups of channels: GroupNorm, InstanceNorm.

Ranks that share a normalization group combine what they have of it; see `Moments`. Half
precision is normalized in float32 and rounded once, as torch does. What travels are
words of float32 then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count
from synth.runtime.comm.shared_parts import Moments, of_owned, rows_in, zero_but_owned
from synth.runtime.compiled.constants import real_tensors
from synth.runtime.grid.boxes import shape
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.kernels.moments import moments, words_per_row
from synth.runtime.kernels.row_scaling import normalized_rows, row_sums, scaled_rows
from synth.runtime.rules.rule import Operand, Rule


def group_norm(
    groups: int,
    eps: Callable[[], float],
    operator: Operator,
    layout: Layout,
    process_groups: ProcessGroups,
    count: Count,
    owned: Layout | None = None,
) -> Rule:
    """The rule of `torch.nn.GroupNorm` on boxes of (b, c, *spatial), however they lie.

    With as many groups as channels it is `torch.nn.InstanceNorm1d/2d/3d`.
    eps: gives what is added to the variance. operator: of torch, called with one word.
    owned: boxes within those of the layout, whose words count; each has one owner. None
        where these are all words.
    """
    shares = Moments(
        owned or layout, (1, layout.whole[1] // groups), process_groups, count
    )
    made = GroupNorm(shares, eps, operator, layout)
    return Rule(layout, (Operand(layout, layout),), made, made.shared)


class GroupNorm:
    """A group normalization of own boxes; see `group_norm`. shared: of owned words."""

    def __init__(
        self,
        shared: Moments,
        eps: Callable[[], float],
        operator: Operator,
        layout: Layout,
    ) -> None:
        self.shared, self.layout, self.owned = shared, layout, shared.layout
        self.eps, self.operator, (_, self.size) = eps, operator, shared.sizes
        self.words = self.shared.group_words  # per sample and group
        self.first, self.last = own = self.shared.held.mine[1]
        self.channels = rows_in(layout.mine[1], own, self.size)  # of each own group
        self.even = len(set(self.channels)) < 2

    def __call__(
        self,
        shard: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """The normalized shard. Raises `ValueError` for dtypes that torch refuses."""
        held = weight, bias
        dtype = operator_dtype("group normalization", self.operator, shard, *held)
        if self._is_plain(shard, dtype, held):
            with no_autocast(shard.device):
                given, groups = shard.to(dtype), len(self.channels)
                return functional.group_norm(given, groups, *held, self.eps())
        wide = sum_dtype(dtype)
        weight, bias = (each if each is None else each.to(wide) for each in held)
        with no_autocast(shard.device):
            out: torch.Tensor = NormalizeGroups.apply(  # type: ignore[no-untyped-call]
                shard.to(dtype), weight, bias, self
            )
        return out

    def _is_plain(
        self,
        shard: torch.Tensor,
        dtype: torch.dtype,
        held: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> bool:
        """Whether the rank has all words of its groups, of one dtype.

        Then torch's own normalization gives the same. Half precision is computed in
        float32 by torch on a GPU, and here on a processor.
        """
        wide = dtype in (torch.float32, torch.float64) or shard.is_cuda
        whole = self.even and self.channels[:1] == [self.size]
        same = all(each is None or each.dtype == dtype for each in held)
        alone = self.shared.alone and self.words > 1 and shard.numel() > 0
        return alone and whole and wide and same

    def statistics(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of each own sample and channel's group."""
        shard = of_owned(shard, self.owned, self.layout)
        if shard.numel():
            found = torch.stack(self._own_moments(shard))
        else:
            found = shard.new_zeros(2, *shape(self.shared.held.mine))
        mean, variance = self.per_channel(self.shared.moments(found))
        return mean, variance

    def group_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over whole groups, per channel.

        values: some numbers per own sample and channel, (numbers, b, c), as the result.
        """
        sums = self._per_group(values)
        return self.per_channel(self.shared.sums(sums))

    def per_channel(self, values: torch.Tensor) -> torch.Tensor:
        """Numbers per own channel, from numbers per own group, the last dimension."""
        if self.even and values.shape[-1]:
            return values.repeat_interleave(self.channels[0], -1)
        return values[..., self._group_of_channel.to(values.device)]

    def _per_group(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over the own channels of groups; channels are the last dimension."""
        if self.even and self.channels:
            sizes = *values.shape[:-1], len(self.channels), self.channels[0]
            return values.reshape(sizes).sum(-1)
        zeros = values.new_zeros(*values.shape[:-1], self.last - self.first)
        return zeros.index_add(-1, self._group_of_channel.to(values.device), values)

    def _own_moments(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of the own words of groups; the shard has some."""
        words = words_per_row(shard)
        if self.even:  # the rows of a group follow each other
            grouped = shard.reshape(len(shard), len(self.channels), -1)
            mean, squares = moments(grouped)
            return mean, squares / (words * self.channels[0])
        mean, squares = moments(shard)
        channels = torch.tensor(self.channels, dtype=mean.dtype, device=mean.device)
        joint = self._per_group(mean) / channels
        squares += words * (mean - self.per_channel(joint)).square_()
        return joint, self._per_group(squares) / (channels * words)

    @cached_property
    def _group_of_channel(self) -> torch.Tensor:
        """For each own channel its group, counted from the first own one."""
        low, high = self.layout.mine[1]
        groups = [channel // self.size - self.first for channel in range(low, high)]
        with real_tensors():
            return torch.tensor(groups, dtype=torch.int64)


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
        mean, variance = norm.statistics(shard.to(sum_dtype(shard.dtype)))
        ctx.norm, ctx.eps = norm, norm.eps()
        ctx.save_for_backward(shard, weight, mean, variance)
        affine = weight, bias, ctx.eps
        return normalized_rows(shard, mean, variance, *affine).to(shard.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of shard, weight and bias; the latter of the own samples alone."""
        shard, weight, mean, variance = ctx.saved_tensors
        norm, asked = ctx.norm, ctx.needs_input_grad
        inverse = torch.rsqrt(variance + ctx.eps)
        sums = torch.stack(row_sums(dout, shard, mean, variance, ctx.eps))
        dshard = None
        if asked[0]:
            scale = torch.ones_like(mean) if weight is None else weight.expand_as(mean)
            shift, slope = norm.group_sums(scale * sums) / norm.words
            slope = -slope * inverse.square()
            dshard = scaled_rows(shard, slope, -shift * inverse - slope * mean)
            dshard = zero_but_owned(dshard, norm.owned, norm.layout)
            each = (scale * inverse).reshape(*mean.shape, *[1] * (shard.dim() - 2))
            dshard = dshard.addcmul_(dout.to(dshard.dtype), each).to(shard.dtype)
        dbias, dweight = (
            each.sum(0) if wanted else None
            for each, wanted in zip(sums, (asked[2], asked[1]), strict=True)
        )
        return dshard, dweight, dbias, None
