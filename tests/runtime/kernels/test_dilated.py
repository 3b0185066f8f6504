"""dIn of dilated layers: a convolution of dOut where oneDNN would make every window of a sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from synth.runtime.grid.allocation_counter import allocated
from synth.runtime.grid.boxes import Window
from synth.runtime.grid.rules.convolution_call import ConvolutionCall
from synth.runtime.grid.rules.onednn_rules import (
    is_faster_turned,
    makes_windows,
)
from synth.runtime.grid.rules.processors import Processor
from synth.runtime.kernels.autotune import TRIALS
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.conv import input_gradient
from synth.runtime.kernels.frame import Frame
from synth.runtime.kernels.routines import recorded_convolution, reversed_convolution

WIDE, SMALL, HALF = (
    Processor("avx512", 49152, 2**21),
    Processor("avx512", 32768, 2**20),
    Processor("avx2", 32768, 2**18),
)
CASES: list[tuple[int, int, int, int, tuple[int, ...], int, int]] = [  # samples, c, k, groups, rows, δ, p
    (1, 64, 64, 1, (72, 72), 4, 0),
    (2, 32, 64, 1, (80, 96), 12, 12),
    (1, 64, 128, 1, (2000,), 64, 64),
    (1, 64, 64, 1, (700,), 8, 3),
    (2, 24, 24, 24, (20, 17), 2, 1),
    (2, 6, 6, 6, (9, 8, 7), 2, 2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(3)
def test_the_gradient_is_that_of_torch(case: Any, dtype: torch.dtype) -> None:
    samples, c, k, groups, rows, dilation, padding = case
    torch.manual_seed(0)
    dims = len(rows)
    window = [Window(n, 3, 1, dilation, padding) for n in rows]
    windows = dict(zip("dhw"[3 - dims :], window, strict=True))
    made = [n + 2 * padding - 2 * dilation for n in rows]
    block = {"b": (0, samples), **{axis: (0, n) for axis, n in zip(windows, made, strict=True)}}
    ker = torch.randn(k, c // groups, *[3] * dims).to(dtype)
    dout = torch.randn(samples, k, *made).to(dtype)
    inputs = torch.zeros(samples, c, *rows, dtype=dtype, requires_grad=True)
    conv: Any = getattr(functional, f"conv{dims}d")
    out = conv(inputs, ker, None, 1, padding, dilation, groups)
    (expected,) = torch.autograd.grad(out, inputs, dout)
    apart = 0.0
    if (
        dtype == torch.bfloat16
    ):  # without AVX-512 torch sums in bfloat16, and is the one that is far from float32
        exact = inputs.detach().float().requires_grad_()
        wide = conv(exact, ker.float(), None, 1, padding, dilation, groups)
        (exact_gradient,) = torch.autograd.grad(wide, exact, dout.float())
        apart = float((exact_gradient - expected).abs().max())
        expected = exact_gradient.to(dtype)
    context, tile = Context(), dout
    if groups > 1:
        ker = ker.reshape(groups, k // groups, *ker.shape[1:])
        tile = dout.reshape(samples, groups, k // groups, *made)
    close: dict[str, Any] = (
        {"rtol": 0.02, "atol": 0.5 + apart} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    )
    for _ in range(TRIALS + 2):
        found = input_gradient(ker, tile, block, windows, context)
        torch.testing.assert_close(found.reshape(expected.shape), expected, **close)
        if not context.tuner.enabled:
            context.tuner.enabled = True
            assert found.is_contiguous()


def test_the_gradient_makes_no_windows() -> None:
    """The windows of this sample are 9 times as many words as dOut."""
    block, window = {"b": (0, 1), "h": (0, 64), "w": (0, 64)}, Window(72, 3, 1, 4, 0)
    ker, dout = torch.randn(64, 64, 3, 3), torch.randn(1, 64, 64, 64)
    windows = {"h": window, "w": window}
    peak = allocated(lambda: input_gradient(ker, dout, block, windows, Context())).peak
    assert peak < 3 * 4 * 64 * 72 * 72


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[4]])
def test_autograd_gives_all_gradients(case: Any) -> None:
    samples, c, k, groups, rows, dilation, padding = case
    dims = len(rows)
    frame = Frame([], [padding] * dims, [1] * dims, [dilation] * dims)
    values = torch.randn(samples, c, *rows, requires_grad=True)
    ker, bias = torch.randn(k, c // groups, *[3] * dims), torch.randn(k)
    conv: Any = getattr(functional, f"conv{dims}d")
    found = []
    runs: list[Any] = [
        lambda *of: recorded_convolution(*of, frame, groups),
        lambda *of: conv(*of, 1, padding, dilation, groups),
    ]
    for run in runs:
        given = [each.detach().clone().requires_grad_() for each in (values, ker, bias)]
        out = run(*given)
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)


def square(channels: int, rows: int, dilation: int, padding: int) -> ConvolutionCall:
    """A dilated call of an image."""
    made, step = rows + 2 * padding - 2 * dilation, (dilation, dilation)
    return ConvolutionCall(1, channels, channels, (rows, rows), (made, made), (3, 3), step, (1, 1))


def windows(channels: int, rows: int, dilation: int, padding: int, processor: Processor = WIDE) -> bool:
    return makes_windows(square(channels, rows, dilation, padding), processor)


def test_which_calls_make_windows() -> None:
    """What oneDNN 3.12 takes on a processor with AVX-512, as it reports by ONEDNN_VERBOSE=1."""
    assert [windows(64, 64, n, n) for n in (8, 24, 28, 30)] == [False, False, False, True]
    assert [windows(64, 128, n, n) for n in (2, 4, 8, 12)] == [False, False, True, True]
    assert [windows(16, 128, n, n) for n in (8, 14, 16)] == [False, False, True]
    assert [windows(64, n, 4, 0) for n in (64, 72)] == [False, True]
    assert is_faster_turned(square(64, 72, 4, 0), WIDE)
    assert not is_faster_turned(square(256, 80, 24, 0), WIDE)  # it would read six times as many rows
    assert not is_faster_turned(square(64, 64, 8, 8), WIDE)


def test_a_smaller_cache_and_shorter_vectors_make_windows_earlier() -> None:
    assert [windows(64, 64, n, n, SMALL) for n in (6, 7, 8)] == [False, False, True]
    assert [windows(64, 64, n, n, HALF) for n in (2, 7, 8)] == [False, False, True]
    assert [windows(16, 16, n, n, HALF) for n in (2, 7, 8)] == [False, False, True]


def test_channels_are_exchanged_by_groups() -> None:
    frame = Frame([], [1, 2], [1, 1], [2, 3])
    inputs = torch.randn(2, 6, 9, 11, dtype=torch.float64, requires_grad=True)
    ker = torch.randn(9, 2, 3, 2, dtype=torch.float64)
    out = functional.conv2d(inputs, ker, None, 1, (1, 2), (2, 3), 3)
    dout = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, inputs, dout)
    torch.testing.assert_close(reversed_convolution(ker, dout, frame, 3), expected)
