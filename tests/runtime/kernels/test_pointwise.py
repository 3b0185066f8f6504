"""Convolutions of one position by oneDNN: the values of torch, on one thread only."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from synth.network.memory import kernel_copies
from synth.runtime.grid.boxes import Window
from synth.runtime.kernels import conv, pointwise
from synth.runtime.kernels.autotune import Frame
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.pointwise import PointwiseConvolution, is_pointwise

pytestmark = pytest.mark.usefixtures("one_thread")
FRAME = Frame([], [0, 0], [1, 1], [1, 1])
CASES = [
    (1, 8, 24, (9, 7)),
    (3, 3, 16, (20, 20)),
    (4, 64, 32, (2, 2)),
    (2, 40, 3, (1, 5)),
    (15, 16, 16, (4, 4)),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_torch(case: Any, bias: bool) -> None:
    samples, c, k, rows = case
    torch.manual_seed(0)
    values = torch.randn(samples, c, *rows, requires_grad=True)
    ker = torch.randn(k, c, 1, 1, requires_grad=True)
    more = torch.randn(k, requires_grad=True) if bias else None
    given = [each for each in (values, ker, more) if each is not None]
    assert is_pointwise(values, ker, FRAME, 1)
    ours: Any = PointwiseConvolution.apply
    found, expected = ours(values, ker, more), torch.conv2d(values, ker, more)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    dout = torch.randn(samples, 1, *rows).expand(samples, k, *rows)  # not contiguous
    pairs = zip(
        torch.autograd.grad(found, given, dout), torch.autograd.grad(expected, given, dout), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_the_passes_of_a_program_take_it(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, c, k, rows = case
    calls = []
    for name in ("pointwise", "pointwise_gradients"):
        plain = getattr(pointwise, name)
        monkeypatch.setattr(conv, name, lambda *of, plain=plain: calls.append(0) or plain(*of))
    windows = {axis: Window(n, 1) for axis, n in zip("hw", rows, strict=True)}
    block = {"b": (0, samples), **{axis: (0, n) for axis, n in zip("hw", rows, strict=True)}}
    values, ker = torch.randn(samples, c, *rows), torch.randn(k, c, 1, 1)
    dout, context = torch.randn(samples, k, *rows), Context()
    made: list[torch.Tensor] = [
        conv.convolve(torch.conv2d, values, ker, block, windows, context),
        conv.input_gradient(ker, dout, block, windows, context),
        conv.kernel_gradient(values, dout, block, windows, context),
    ]
    flat, back = values.flatten(2), dout.flatten(2)
    expected = [
        torch.einsum("kc,bcx->bkx", ker[..., 0, 0], flat).view(dout.shape),
        torch.einsum("kc,bkx->bcx", ker[..., 0, 0], back).view(values.shape),
        torch.einsum("bkx,bcx->kc", back, flat).view(ker.shape),
    ]
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
        assert one.is_contiguous()
    assert len(calls) == 3


def test_what_it_is_not_for() -> None:
    values, ker = torch.randn(4, 8, 6, 6), torch.randn(16, 8, 1, 1)
    assert is_pointwise(values, ker, FRAME, 1)
    assert not is_pointwise(values, ker, FRAME, 2)
    assert not is_pointwise(values, ker, Frame([], [0, 0], [2, 1], [1, 1]), 1)
    assert not is_pointwise(values, ker, Frame([], [1, 1], [1, 1], [1, 1]), 1)
    assert not is_pointwise(values, ker.expand(16, 8, 3, 3), FRAME, 1)
    assert not is_pointwise(values.double(), ker.double(), FRAME, 1)
    assert not is_pointwise(values.to(memory_format=torch.channels_last), ker, FRAME, 1)
    assert not is_pointwise(values[..., :1, :1].contiguous(), ker, FRAME, 1)
    assert not is_pointwise(values.repeat(4, 1, 1, 1), ker, FRAME, 1)  # torch takes oneDNN itself
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_pointwise(values, ker, FRAME, 1)
    torch.set_num_threads(2)
    assert not is_pointwise(values, ker, FRAME, 1)


def test_planning_knows_the_same_limits() -> None:
    """It needs no torch, so it has numbers of its own."""
    assert kernel_copies.MANY_SAMPLES == pointwise.MANY_SAMPLES
    assert kernel_copies.FEW_POSITIONS == pointwise.FEW_POSITIONS
