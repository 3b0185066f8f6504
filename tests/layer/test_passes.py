"""The three passes: adjoint to each other, equal to torch's gradients, on the simulator and on real ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cases import CASES
from example_nests import Values, whole_numbers
from hypothesis import given, settings
from hypothesis_problems import layers, training_steps
from ranks import run_ranks
from torch_layer import torch_output

from synth.codegen.render import render
from synth.launch.reference import shapes
from synth.layer.axes import SPATIAL, TENSORS
from synth.layer.layer import Layer
from synth.layer.passes import PASSES, WRITES, reads, role_name
from synth.planning.plan import Plan
from synth.runtime.program.sample_data import sample
from synth.schedule.schedule import Schedule
from synth.schedule.volume import received
from synth.simulation.interpreter import simulate
from synth.simulation.numpy_kernels import reference


def test_roles() -> None:
    for pass_ in PASSES:
        assert {*reads(pass_), WRITES[pass_]} == {*TENSORS}
    assert [role_name(p, t) for p in PASSES for t in TENSORS] == [
        *("In", "Ker", "Out"),
        *("dIn", "Ker", "dOut"),
        *("In", "dKer", "dOut"),
    ]


@given(training_steps())
@settings(max_examples=60)
def test_passes_are_adjoint(schedules: tuple[Schedule, ...]) -> None:
    """⟨Out(x, w), y⟩ = ⟨x, dIn(w, y)⟩ = ⟨w, dKer(x, y)⟩, each computed by another schedule."""
    nest = schedules[0].distribution.nest
    values = {tensor: whole_numbers(nest, tensor) for tensor in TENSORS}
    products = []
    for schedule in schedules:
        one, other = (values[tensor] for tensor in schedule.pass_plan.reads)
        made = simulate(schedule, one, other).out
        assert made is not None
        products.append(float((made * values[schedule.pass_plan.written]).sum()))
    assert products[0] == products[1] == products[2]


@given(training_steps())
@settings(max_examples=60)
def test_words_of_every_rank_are_the_formula(schedules: tuple[Schedule, ...]) -> None:
    for schedule in schedules:
        planned = received(schedule.distribution, schedule.pass_plan)
        counted = simulate(schedule).received
        for rank in schedule.distribution.ranks:
            expected = planned.at(schedule.distribution.at(rank))
            assert {name: words[rank] for name, words in counted.items()} == expected


@given(layers())
@settings(max_examples=60)
def test_local_kernels_are_torchs_gradients(layer: Layer) -> None:
    """Values and shapes for any stride, padding, dilation and groups; In holds only rows that are read."""
    whole = dict(zip(TENSORS, shapes(layer).values(), strict=True))
    device = torch.device("cpu")
    inputs, ker, dout = (
        sample(name, whole[tensor], [range(n) for n in whole[tensor]], torch.float64, device)
        for name, tensor in zip(("In", "Ker", "dOut"), TENSORS, strict=True)
    )
    out = torch_output(layer, inputs.requires_grad_(), ker.requires_grad_()).reshape(dout.shape)
    din, dker = torch.autograd.grad(out, (inputs, ker), dout)
    assert din.shape == inputs.shape
    assert dker.shape == ker.shape
    nest = layer.nest
    stored = {"In": _rows(layer, inputs.detach()), "Ker": ker.detach().numpy(), "Out": dout.numpy()}
    stored = {tensor: values.reshape(nest.shapes[tensor]) for tensor, values in stored.items()}  # type: ignore[index]
    for pass_, right in zip(PASSES, (out.detach().numpy(), _rows(layer, din), dker.numpy()), strict=True):
        one, other = (stored[tensor] for tensor in reads(pass_))
        made = reference(nest, one, other, pass_)
        np.testing.assert_array_equal(made, right.reshape(nest.shapes[WRITES[pass_]]))


def _rows(layer: Layer, values: torch.Tensor) -> Values:
    """Only the rows that the layer reads; the others must be of no account."""
    axes = [axis for axis in SPATIAL if axis in layer.spatial_axes]
    for dim, axis in enumerate(axes, values.dim() - len(axes)):
        window = layer.nest.windows[axis]
        values = values.index_select(dim, torch.tensor([window.source(row) for row in range(window.size)]))
    return values.numpy()


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["training_tiles", "training_grouped"])
def test_real_ranks_are_adjoint(name: str, tmp_path: Path) -> None:
    plan = CASES[name]
    outcome = run_ranks(render(plan), plan.used_procs, tmp_path, "--save")
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    products = {role: _product(plan, role, tmp_path) for role in ("Out", "dIn", "dKer")}
    assert products["Out"] == products["dIn"] == products["dKer"]


def _product(plan: Plan, role: str, folder: Path) -> float:
    """⟨a result, the sample values of its counterpart⟩, share by share as the ranks saved them."""
    counterpart = {"Out": "dOut", "dIn": "In", "dKer": "Ker"}[role]
    whole = shapes(plan.layer)[role.removeprefix("d")]  # type: ignore[index]
    values = sample(counterpart, whole, [range(n) for n in whole], torch.float64, torch.device("cpu"))
    if role == "dIn":
        values = torch.from_numpy(_rows(plan.layer, values))
    total = 0.0
    for path in sorted(folder.glob("rank-*.pt")):
        saved = torch.load(path)[role]
        total += float((saved["values"].double() * values[tuple(slice(*i) for i in saved["box"])]).sum())
    return total
