"""Statistics of shards: two ways to the same numbers, and those of torch in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from synth.runtime.kernels import moments

shapes = st.lists(st.integers(1, 9), min_size=2, max_size=5).map(tuple)


def expected(shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dims = [0, *range(2, shard.dim())]
    return shard.double().mean(dims), shard.double().var(dims, correction=0)


@given(shapes, st.sampled_from((0.0, -30.0, 1000.0)), st.integers(0, 2**31), st.booleans())
def test_every_size_of_row(shape: tuple[int, ...], offset: float, seed: int, strided: bool) -> None:
    shard = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset
    shard = shard.transpose(0, 1) if strided else shard
    with pytest.MonkeyPatch.context() as patch:
        for short in (0, 10**6):  # by rows, and by torch's kernel
            patch.setattr(moments, "SHORT", short)
            for found, right in zip(moments.channel_moments(shard), expected(shard), strict=True):
                torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("size", [2, 8, 40])
def test_a_mean_far_from_zero_keeps_the_variance(size: int) -> None:
    shard = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0)) + 1000
    mean, variance = moments.channel_moments(shard)
    torch.testing.assert_close(mean.double(), expected(shard)[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), expected(shard)[1], rtol=1e-4, atol=0)
