"""Half types: sample values of which every partial sum is exact, so that a check asks for equality."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers
from ranks import run_ranks
from torch_layer import torch_output

from synth.base.errors import CheckError
from synth.codegen.render import render
from synth.launch.reference import shapes
from synth.launch.run import Outcome, run
from synth.layer.layer import Layer
from synth.planning.derive import plan
from synth.planning.plan import Plan
from synth.runtime.program.check import value_fault
from synth.runtime.program.sample_data import nonzero, sample

CPU = torch.device("cpu")
MOST = {torch.bfloat16: 256, torch.float16: 2048}
WIDE = {
    "channels": Layer.conv2d((1, 400, 4, 4), 200, 3, padding=1),
    "filters": Layer.conv2d((1, 3, 8, 8), 300, 7, padding=3),
    "positions": Layer.conv2d((5, 2, 70, 60), 2, 3, padding=1),
    "volume": Layer.conv3d((2, 20, 9, 8, 7), 30, 3),
    "groups": Layer.conv1d((40, 60, 90), 30, 9, groups=3),
    "depthwise": Layer.conv2d((9, 100, 20, 20), 100, 3, padding=1, groups=100),
    "matrix": Layer.matmul(3000, 20, 2500),
}


def largest_sums(layer: Layer, dtype: torch.dtype) -> tuple[float, ...]:
    """The largest sums of magnitudes in Out, dIn and dKer: no partial sum is larger, in whatever order."""
    dims = len(layer.spatial_axes)
    inputs, ker, dout = (
        sample(name, whole, [range(n) for n in whole], dtype, CPU, dims).abs().double().requires_grad_()
        for name, whole in zip(("In", "Ker", "dOut"), shapes(layer).values(), strict=True)
    )
    out = torch_output(layer, inputs, ker).reshape(dout.shape)
    gradients = torch.autograd.grad(out, (inputs, ker), dout)
    return tuple(float(each.max()) for each in (out.detach(), *gradients))


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("name", WIDE)
def test_every_partial_sum_is_exact(name: str, dtype: torch.dtype) -> None:
    sums = largest_sums(WIDE[name], dtype)
    assert max(sums) <= MOST[dtype]
    assert min(sums) > 0


@given(layers())
@settings(max_examples=40)
def test_small_layers_keep_every_word(layer: Layer) -> None:
    for tensor, whole in shapes(layer).items():
        places = [range(n) for n in whole]
        values = sample("dOut" if tensor == "Out" else tensor, whole, places, torch.float16, CPU)
        assert set(values.unique().tolist()) <= {-1.0, 1.0}


@given(layers(), st.integers(1, 40), st.sampled_from(["Ker", "dOut"]))
def test_channels_keep_at_most_so_many_words(layer: Layer, most: int, tensor: str) -> None:
    """Of each input and output channel of Ker, of each channel of dOut."""
    whole, dims = shapes(layer)["Out" if tensor == "dOut" else "Ker"], len(layer.spatial_axes)
    words = nonzero(tensor, whole, [range(n) for n in whole], most, dims)
    assert words.shape == whole
    lead = len(whole) - dims
    for summed in (lead - 2, lead - 1) if tensor == "Ker" else (0,):
        assert int(words.sum((summed, *range(lead, len(whole)))).max()) <= most


@pytest.mark.parametrize("name", WIDE)
def test_taps_and_positions_are_all_tried(name: str) -> None:
    """Some word of each is not zero, and so is about one word in as many as must be left out."""
    layer = WIDE[name]
    whole, dims = shapes(layer)["Ker"], len(layer.spatial_axes)
    words = nonzero("Ker", whole, [range(n) for n in whole], 256, dims).flatten(0, len(whole) - dims - 1)
    assert bool(words.any(0).all())
    whole = shapes(layer)["Out"]
    words = nonzero("dOut", whole, [range(n) for n in whole], 256, dims)
    assert float(words.double().mean()) >= min(1.0, 128 / (words.numel() / whole[len(whole) - dims - 1]))


def test_only_equal_values_pass() -> None:
    right = torch.arange(-200.0, 200.0)
    box = ((0, 400),)
    for dtype in MOST:
        assert value_fault("Out", right.to(dtype), right, box) is None
        near = (right * 1.05).to(dtype)
        fault = value_fault("Out", near, right, box)
        assert fault is not None
        assert "399 of 400 words" in fault
        assert value_fault("Out", torch.full((400,), torch.nan, dtype=dtype), right, box)
    assert value_fault("Out", right + 0.4, right, box) is None  # the rounding of Winograd


def half(pass_: str = "forward", **rest: str) -> Plan:
    layer = Layer.conv2d((2, 64, 14, 14), 32, 3, padding=1, dtype="bfloat16", name="half")
    return plan(layer, 4, grid={"c": 4}, pass_=pass_)


@pytest.mark.ranks
def test_a_small_factor_is_found(tmp_path: Path) -> None:
    text = render(half())
    assert "    return wait_reduce(pending_sum)\n" in text
    wrong = text.replace(
        "    return wait_reduce(pending_sum)\n", "    return wait_reduce(pending_sum) * 1.05\n"
    )
    outcome = run_ranks(wrong, 4, tmp_path, "--check")
    assert set(outcome.codes) == {5}
    assert "Out differs in" in outcome.output[0]


@pytest.mark.ranks
def test_the_variants_that_are_timed_are_checked(tmp_path: Path) -> None:
    text = render(half(), standalone=True)
    chosen = "return variants[min(variants, key=lambda name: min(times[name]))]()"
    assert chosen in text
    wrong = text.replace(chosen, chosen.replace("return ", "return 1 + "))
    outcome = run_ranks(wrong, 4, tmp_path, "--check", "--tune", "--bench", "1")
    assert set(outcome.codes) == {5}
    assert "Out differs in" in outcome.output[0]


@pytest.mark.ranks
@pytest.mark.slow
def test_values_of_a_training_step_are_equal() -> None:
    outcome = run(half("training"), repetitions=0)
    assert outcome.difference == 0
    assert "equal to one-process torch, word for word" in str(outcome)


@pytest.mark.ranks
@pytest.mark.slow
def test_the_driver_finds_a_small_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program's own check is silent."""
    wrong = render(half()).replace(
        "return wait_reduce(pending_sum)\n", "return wait_reduce(pending_sum) * 1.05\n"
    )
    line = "    args = parse_arguments(__doc__)\n"
    wrong = wrong.replace(line, line + "    args.check = False\n")
    monkeypatch.setattr("synth.launch.run.render", lambda *_, **__: wrong)
    with pytest.raises(CheckError, match=r"words of Out wrong, the first at \[0, 0, 0, 0\]"):
        run(half(), repetitions=0)


def test_what_was_compared_and_timed_is_said() -> None:
    made = half()
    words = [{"in": 0, "ker": 0, "out": 0, "halo": 0, "total": 0}] * 4
    told = str(Outcome(made, 0.5, [], words))
    assert "equal to one-process torch, word for word" in told
    assert "time    0.5000 s on the slowest rank, in one untimed run" in told
    rounded = Outcome(made, 0.5, [0.25], words, 0.00037)
    assert "once rounded to whole numbers (at most 0.0004 away, less than 0.5 is allowed)" in str(rounded)
    assert "median 0.2500 s of 1 run on the slowest rank" in str(rounded)
    assert rounded.to_json()["largest_difference"] == 0.00037
