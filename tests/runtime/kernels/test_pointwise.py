"""Convolutions of one position by oneDNN: the values of torch, on one thread only."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from synth.runtime.grid.boxes import Window
from synth.runtime.grid.rules.library_rules import FEW_POSITIONS
from synth.runtime.kernels import conv
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.frame import Frame
from synth.runtime.kernels.routines import recorded_convolution

pytestmark = pytest.mark.usefixtures("one_thread")
FRAME = Frame([], [0, 0], [1, 1], [1, 1])
CASES = [
    (1, 8, 24, (9, 7)),
    (3, 3, 16, (20, 20)),
    (4, 64, 32, (2, 2)),
    (2, 40, 3, (1, 5)),
    (15, 16, 16, (4, 4)),
]


def by_onednn(values: torch.Tensor, ker: torch.Tensor, frame: Frame, groups: int) -> bool:
    """Whether oneDNN is called in torch's place, by what autograd records."""
    made = recorded_convolution(values, ker.detach().requires_grad_(), None, frame, groups)
    return type(made.grad_fn).__name__ != "ConvolutionBackward0"


class Calls(TorchDispatchMode):
    """Counts the calls that are given to oneDNN, by the operator or by the layout of In."""

    def __init__(self) -> None:
        super().__init__()
        self.onednn = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every call of torch."""
        aten = torch.ops.aten
        told = function == aten.convolution_backward.default and args[1].layout != torch.strided
        self.onednn += told or function == aten.mkldnn_convolution.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_torch(case: Any, bias: bool) -> None:
    samples, c, k, rows = case
    torch.manual_seed(0)
    values = torch.randn(samples, c, *rows, requires_grad=True)
    ker = torch.randn(k, c, 1, 1, requires_grad=True)
    more = torch.randn(k, requires_grad=True) if bias else None
    given = [each for each in (values, ker, more) if each is not None]
    found, expected = recorded_convolution(values, ker, more, FRAME, 1), torch.conv2d(values, ker, more)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    dout = torch.randn(samples, 1, *rows).expand(samples, k, *rows)  # not contiguous
    pairs = zip(
        torch.autograd.grad(found, given, dout), torch.autograd.grad(expected, given, dout), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_the_passes_of_a_program_take_it(case: Any) -> None:
    samples, c, k, rows = case
    windows = {axis: Window(n, 1) for axis, n in zip("hw", rows, strict=True)}
    block = {"b": (0, samples), **{axis: (0, n) for axis, n in zip("hw", rows, strict=True)}}
    values, ker = torch.randn(samples, c, *rows), torch.randn(k, c, 1, 1)
    dout, context = torch.randn(samples, k, *rows), Context()
    with Calls() as calls:
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
    assert calls.onednn == 2 + (samples * math.prod(rows) > FEW_POSITIONS)


def test_what_it_is_not_for() -> None:
    values, ker = torch.randn(4, 8, 6, 6), torch.randn(16, 8, 1, 1)
    assert by_onednn(values, ker, FRAME, 1)
    assert not by_onednn(values, ker[:, :4], FRAME, 2)
    assert not by_onednn(values, ker, Frame([], [0, 0], [2, 1], [1, 1]), 1)
    assert not by_onednn(values, ker, Frame([], [1, 1], [1, 1], [1, 1]), 1)
    assert not by_onednn(values, ker.expand(16, 8, 3, 3), FRAME, 1)
    assert not by_onednn(values.double(), ker.double(), FRAME, 1)
    assert not by_onednn(values.to(memory_format=torch.channels_last), ker, FRAME, 1)
    assert not by_onednn(values[..., :1, :1].contiguous(), ker, FRAME, 1)
    assert not by_onednn(values.repeat(4, 1, 1, 1), ker, FRAME, 1)  # torch takes oneDNN itself
    with torch.autocast("cpu", torch.bfloat16):
        assert not by_onednn(values, ker, FRAME, 1)
    torch.set_num_threads(2)
    assert not by_onednn(values, ker, FRAME, 1)
