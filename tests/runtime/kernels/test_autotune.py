"""The variants of the local kernel compute the same values, and the fastest one is used."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from torch.nn import functional

from synth.codegen.render import render
from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.grid.boxes import Interval, Window, cut, input_rows
from synth.runtime.kernels import autotune
from synth.runtime.kernels.autotune import Tuner
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.conv import convolve, input_gradient, kernel_gradient
from synth.runtime.kernels.frame import explicit_zeros, frame_of
from synth.runtime.kernels.routines import is_small_volume, recorded_convolution
from synth.runtime.kernels.winograd import winograd, winograd_filter, winograd_input


def whole_numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).double()


@settings(max_examples=40)
@given(
    dims=st.integers(1, 3),
    taps=st.integers(1, 4),
    stride=st.integers(1, 2),
    padding=st.integers(0, 3),
    parts=st.integers(1, 3),
    data=st.data(),
)
def test_zeros_that_are_there_already_are_not_written_again(
    dims: int, taps: int, stride: int, padding: int, parts: int, data: st.DataObject
) -> None:
    """A block somewhere: its rows alone and with the zeros beside them give the same Out and dKer."""
    rows = 9
    windows = {axis: Window(rows, taps, stride, 1, padding) for axis in "dhw"[3 - dims :]}
    out = (rows + 2 * padding - taps) // stride + 1
    pieces = {axis: cut((0, out), parts, data.draw(st.integers(0, parts - 1))) for axis in windows}
    block = {"b": (0, 2), "c": (0, 3), "k": (0, 2), **pieces}
    sizes = [
        high - low for low, high in (input_rows(block[axis], window) for axis, window in windows.items())
    ]
    tile, ker = whole_numbers(2, 3, *sizes), whole_numbers(2, 3, *[taps] * dims)
    dout = whole_numbers(2, 2, *(high - low for low, high in pieces.values()))
    zeros = explicit_zeros(block, windows)
    framed = functional.pad(tile, zeros)
    conv: Any = getattr(functional, f"conv{dims}d")
    context = Context()
    for given_tile in (tile, framed):
        assert torch.equal(
            convolve(conv, given_tile, ker, block, windows, context), _summed(tile, ker, block, windows)
        )
    one, other = (kernel_gradient(each, dout, block, windows, context) for each in (tile, framed))
    assert torch.equal(one, other)


def _summed(
    tile: torch.Tensor, ker: torch.Tensor, block: dict[str, Interval], windows: dict[str, Window]
) -> torch.Tensor:
    """Out of a block tap by tap, as the nest has it."""
    ranges = [range(*block[axis]) for axis in windows]
    starts = [input_rows(block[axis], window)[0] for axis, window in windows.items()]
    out = torch.zeros(2, 2, *map(len, ranges), dtype=tile.dtype)
    for at in product(*(range(len(each)) for each in ranges)):
        for tap in product(*(range(window.kernel) for window in windows.values())):
            places = zip(at, tap, ranges, starts, windows.values(), strict=True)
            row = [w.stride * r[o] + t - w.padding - s for o, t, r, s, w in places]
            if all(0 <= i < n for i, n in zip(row, tile.shape[2:], strict=True)):
                index = (slice(None), slice(None))
                out[(*index, *at)] += tile[(*index, *row)] @ ker[(*index, *tap)].T
    return out


@given(
    dims=st.integers(1, 3),
    taps=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    groups=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_all_variants_agree(
    dims: int, taps: int, stride: int, dilation: int, padding: int, groups: int, seed: int
) -> None:
    """Whole numbers: sums are exact in any order, so the results are equal bit by bit.

    Except where products are saved (Winograd), whose transforms round.
    """
    torch.manual_seed(seed)
    rows = 7
    out = (rows + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    window = Window(rows, taps, stride, dilation, padding)
    windows = dict(zip("dhw"[3 - dims :], [window] * dims, strict=True))
    block = {"b": (0, 2), "c": (0, 3), "k": (0, 2), **dict.fromkeys(windows, (0, out))}
    group = (groups,) if groups > 1 else ()
    in_tile = whole_numbers(2, *group, 3, *[rows] * dims)
    ker, dout = whole_numbers(*group, 2, 3, *[taps] * dims), whole_numbers(2, *group, 2, *[out] * dims)
    conv: Any = getattr(functional, f"conv{dims}d")
    context = Context()
    kernels = (
        lambda: convolve(conv, in_tile, ker, block, windows, context),
        lambda: input_gradient(ker, dout, block, windows, context),
        lambda: kernel_gradient(in_tile, dout, block, windows, context),
    )
    direct = [kernel() for kernel in kernels]
    context.tuner.enabled = True
    exact = (taps, stride, dilation, groups) != (3, 1, 1, 1)
    for _ in range(autotune.TRIALS + 1):
        for kernel, expected in zip(kernels, direct, strict=True):
            found = kernel()
            assert torch.equal(found, expected) if exact else torch.allclose(found, expected, 0, 1e-9)
    assert all(("winograd" in times) != exact for times in context.tuner.times.values())


@given(
    sizes=st.lists(st.integers(1, 11), min_size=1, max_size=3),
    channels=st.tuples(*[st.integers(1, 4)] * 3),
    padding=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    seed=st.integers(0, 9),
)
def test_fewer_products(
    sizes: list[int], channels: tuple[int, int, int], padding: list[int], seed: int
) -> None:
    """Winograd's Out and gradients are torch's, for any rows and padding; scratch is used again."""
    torch.manual_seed(seed)
    dims, (n, c, k) = len(sizes), channels
    sizes = [max(size, 3 - 2 * p) for size, p in zip(sizes, padding, strict=False)]
    inputs = torch.randn(n, c, *sizes, dtype=torch.float64, requires_grad=True)
    ker = torch.randn(k, c, *[3] * dims, dtype=torch.float64, requires_grad=True)
    conv: Any = getattr(functional, f"conv{dims}d")
    out = conv(inputs, ker, padding=padding[:dims])
    dout = torch.randn_like(out)
    din, dker = torch.autograd.grad(out, (inputs, ker), dout)
    buffers = BufferPool()
    with torch.no_grad():
        found = (
            winograd(inputs, ker, padding[:dims], buffers),
            winograd_input(dout, ker, padding[:dims], buffers),
            winograd_filter(inputs, dout, padding[:dims], buffers),
        )
    for values, expected in zip(found, (out, din, dker), strict=True):
        assert values.is_contiguous()
        assert torch.allclose(values, expected, 1e-9, 1e-9)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
def test_one_small_volume(stride: int, dilation: int, padding: int) -> None:
    """Where torch passes its good 3-D kernel over, ours is taken and gives the same values."""
    torch.manual_seed(0)
    rows, taps = (7, 7, 9), 3  # all of them are read
    inputs = torch.randint(-3, 4, (1, 4, *rows)).float().requires_grad_()
    ker = torch.randint(-3, 4, (5, 4, taps, taps, taps)).float().requires_grad_()
    assert is_small_volume(inputs.shape, 1, inputs)
    out = functional.conv3d(inputs, ker, None, stride, padding, dilation)
    dout = torch.randint(-3, 4, out.shape).float()
    din, dker = torch.autograd.grad(out, (inputs, ker), dout)
    windows = {axis: Window(n, taps, stride, dilation, padding) for axis, n in zip("dhw", rows, strict=True)}
    extents = dict(zip("dhw", out.shape[2:], strict=True)) | {"b": 1, "c": 4, "k": 5}
    block = {axis: (0, n) for axis, n in extents.items()}
    context = Context()
    with torch.no_grad():
        assert torch.equal(convolve(functional.conv3d, inputs, ker, block, windows, context), out)
        assert torch.equal(input_gradient(ker, dout, block, windows, context), din)
        assert torch.equal(kernel_gradient(inputs, dout, block, windows, context), dker)
    found = recorded_convolution(inputs, ker, None, frame_of(block, windows), 1)
    assert type(found.grad_fn).__name__ == "ConvolutionBackward"
    assert torch.equal(found, out)
    assert all(map(torch.equal, torch.autograd.grad(found, (inputs, ker), dout), (din, dker)))


def test_the_fastest_variant_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], list[str]()
    monkeypatch.setattr(autotune, "clock", lambda _: clock[0])

    def variant(name: str, seconds: float) -> autotune.Variant:
        def run() -> torch.Tensor:
            clock[0] += seconds
            calls.append(name)
            return torch.zeros(1)

        return run

    choice = {"direct": variant("direct", 3.0), "channels-last": variant("channels-last", 2.0)}
    key = "forward", (1, 1, 1, 1), (1, 1, 1, 1), torch.float32
    tuner = Tuner(enabled=True)
    for _ in range(2 * autotune.TRIES + 4):
        tuner.run(key, choice, torch.device("cpu"))
    assert calls[: 2 * autotune.TRIES].count("direct") == autotune.TRIES
    assert calls[2 * autotune.TRIES :] == ["channels-last"] * 4
    assert tuner.report() == [
        "forward [1, 1, 1, 1] * [1, 1, 1, 1] torch.float32: channels-last 2000.00 ms, direct 3000.00 ms"
    ]


@pytest.mark.ranks
@pytest.mark.parametrize("standalone", [False, True])
@pytest.mark.one_in(2)
def test_a_program_tunes_its_kernels(standalone: bool, tmp_path: Path) -> None:
    plan = CASES["training_3d"]
    text = render(plan, standalone=standalone)
    outcome = run_ranks(text, plan.used_procs, tmp_path, "--check", "--tune", "--bench", "1")
    assert set(outcome.codes) == {0}, outcome.output
    assert "kernel on rank 0: forward [" in outcome.output[0]
    assert "unfold" in outcome.output[0]
    assert "winograd" in outcome.output[0]


def test_tune_holds_for_networks_that_are_created_later() -> None:
    import synth

    before = autotune.default_tuner()
    synth.tune()
    assert autotune.default_tuner().enabled
    assert not before.enabled
    synth.tune(False)
    assert not autotune.default_tuner().enabled
