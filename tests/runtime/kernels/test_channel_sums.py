"""Kernels of norms and convolutions on tensors of any strides: what they give for contiguous ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from synth.runtime.kernels import moments, routines
from synth.runtime.kernels.channel_sums import channel_sums, of_its_batch
from synth.runtime.kernels.frame import Frame
from synth.runtime.kernels.row_scaling import normalized_rows, row_sums, scaled_rows

CHANNELS, EPS = 6, 0.5
SHAPES = [
    *((b, CHANNELS, *rest) for b in (1, 2) for rest in [(1,), (3,), (1, 1), (1, 3), (3, 1), (2, 3)]),
    *((1, CHANNELS, *rest) for rest in [(1, 1, 1), (1, 2, 1), (2, 2, 2)]),
    *((2, 1, 1, 3), (1, 1, 1, 1), (3, 1, 1)),
]
BOUNDS = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 3e-2}


def laid(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Equal tensors of other strides: permuted, parts of larger ones, any stride where an extent is 1."""
    dims = values.dim()
    orders = list(itertools.permutations(range(dims)))
    made = {
        each.stride(): each
        for order in (orders if dims < 5 else orders[::17])
        for each in [values.permute(order).contiguous().permute([order.index(d) for d in range(dims)])]
    }
    yield from (values, *made.values())
    for step in (1, 2):
        larger = torch.full([2 * n for n in values.shape], 1e9, dtype=values.dtype)
        part = larger[tuple(slice(0, step * n, step) for n in values.shape)]
        yield part.copy_(values)
    for free in (0, 1):
        strides = [stride if n > 1 else free for n, stride in zip(values.shape, values.stride(), strict=True)]
        yield values.as_strided(values.shape, strides)


def numbers(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Equal numbers of other strides; expanded ones if they are alike."""
    yield values
    yield torch.stack([values, torch.full_like(values, 1e9)], -1)[..., 0]
    if len(values.unique()) == 1:
        yield values.flatten()[0].expand(values.shape)


def alike(found: Any, right: Any, bound: float) -> bool:
    pairs = zip(found, right, strict=True)
    return all(torch.allclose(a.double(), b.double(), bound, bound) for a, b in pairs)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.one_in(4)
def test_sums_of_channels(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dout, shard = torch.randn(2, *shape).to(dtype).unbind()
    mean, variance = torch.full((2, shape[1]), 0.5, dtype=wide(dtype)).unbind()
    each = [1, -1, *[1] * (len(shape) - 2)]
    normal = (shard.to(wide(dtype)) - mean.view(each)) / (variance.view(each) + EPS).sqrt()
    dims = [0, *range(2, len(shape))]
    right = dout.to(wide(dtype)).sum(dims), (dout.to(wide(dtype)) * normal).sum(dims)
    for given in itertools.product(laid(dout), laid(shard)):
        assert alike(channel_sums(*given, mean, variance, EPS), right, BOUNDS[dtype])
    for values in numbers(mean):
        assert alike(channel_sums(dout, shard, values, variance, EPS), right, BOUNDS[dtype])
        assert alike(channel_sums(dout, shard, mean, values + 0, EPS), right, BOUNDS[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [each for each in SHAPES if each[0] * each[-1] > 1], ids=str)
@pytest.mark.one_in(4)
def test_a_batch_norm_of_its_batch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dout, shard = torch.randn(2, *shape, dtype=dtype).unbind()
    affine = torch.rand(shape[1], dtype=dtype), torch.rand(shape[1], dtype=dtype)

    def run(shard: torch.Tensor, dout: torch.Tensor) -> list[torch.Tensor]:
        leaf = shard.detach().requires_grad_()
        running = torch.zeros(shape[1], dtype=dtype), torch.ones(shape[1], dtype=dtype)
        out = of_its_batch(leaf, running, affine, 0.1, EPS)
        return [out.detach(), *torch.autograd.grad(out, leaf, dout), *running]

    dims = [0, *range(2, len(shape))]
    right, leaf = run(shard, dout), shard.clone().requires_grad_()
    variance, mean = torch.var_mean(leaf, dims, correction=0, keepdim=True)
    each = [1, -1, *[1] * (len(shape) - 2)]
    out = (leaf - mean) / (variance + EPS).sqrt() * affine[0].view(each) + affine[1].view(each)
    assert alike(right[:2], [out, *torch.autograd.grad(out, leaf, dout)], BOUNDS[dtype])
    for given in itertools.product(laid(shard), laid(dout)):
        assert alike(run(*given), right, BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.one_in(10)
def test_rows_and_moments(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dout, shard = torch.randn(2, *shape).to(dtype).unbind()
    per_row = torch.full(shape[:2], 0.5, dtype=wide(dtype))
    affine = torch.rand(2, shape[1], dtype=wide(dtype)).unbind()

    def run(dout: torch.Tensor, shard: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
        whole = shard.to(wide(dtype))
        return [
            *row_sums(dout, shard, row, row, EPS),
            normalized_rows(shard, row, row, *affine, EPS),
            scaled_rows(whole, row, row),
            *moments.moments(whole),
            *moments.channel_moments(whole),
        ]

    right = run(dout, shard, per_row)
    rows = dout.to(wide(dtype)).flatten(2).sum(-1)
    assert alike(right[:1], [rows], BOUNDS[dtype])
    for given in itertools.product(laid(dout), laid(shard)):
        assert alike(run(*given, per_row), right, BOUNDS[dtype])
    for values in numbers(per_row):
        assert alike(run(dout, shard, values), right, BOUNDS[dtype])


Routine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Frame], torch.Tensor]
ROUTINES: dict[str, Routine] = {
    "Out": lambda x, ker, _, frame: routines.convolution(x, ker, None, frame, 1),
    "dIn": lambda x, ker, dout, frame: routines.in_gradient(dout, ker, x.shape, frame, 1),
    "dKer": lambda x, ker, dout, frame: routines.ker_gradient(x, dout, ker.shape, frame, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize(
    "shape", [(1, 4, 1, 1), (1, 4, 1, 5), (2, 4, 3, 1), (2, 4, 3, 5), (1, 2, 2, 1, 3)], ids=str
)
@pytest.mark.parametrize("which", ROUTINES)
@pytest.mark.one_in(5)
def test_convolutions(
    which: str, shape: tuple[int, ...], taps: int, dilation: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    dims, zeros = len(shape) - 2, dilation * (taps // 2)
    frame = Frame([], [zeros] * dims, [1] * dims, [dilation] * dims)
    x, dout = torch.randn(shape, dtype=dtype), torch.randn(shape[0], 5, *shape[2:], dtype=dtype)
    ker = torch.randn(5, shape[1], *[taps] * dims, dtype=dtype)
    leaves = x.clone().requires_grad_(), ker.clone().requires_grad_()
    conv = functional.conv2d if dims == 2 else functional.conv3d
    out = conv(*leaves, padding=zeros, dilation=dilation)
    made = dict(zip(ROUTINES, (out, *torch.autograd.grad(out, leaves, dout, retain_graph=True)), strict=True))
    few = list(laid(x)) if dims == 2 else [x, *list(laid(x))[-3:]]
    for given, gradient in itertools.product(few, laid(dout) if dims == 2 else [dout]):
        for weights in numbers(ker):
            found = ROUTINES[which](given, weights, gradient, frame)
            assert alike([found], [made[which]], 10 * BOUNDS[dtype])
