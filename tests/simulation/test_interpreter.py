"""Values: the interpreted schedule against torch, bit for bit, on whole numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_nests import Values, whole_numbers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_problems import KINDS, layers, schedules

from synth.layer.axes import AXES, PerAxis
from synth.layer.layer import Layer
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule
from synth.simulation.interpreter import simulate


def by_torch(layer: Layer, inputs: Values, ker: Values) -> Values:
    """The layer as torch computes it, from and to the user's shapes, in float64."""
    one, other = torch.from_numpy(inputs), torch.from_numpy(ker)
    if layer.kind == "matmul":
        return (one @ other).numpy()
    if layer.kind == "einsum":
        found, out = layer.contraction, torch.einsum(layer.equation, one, other)
        assert out.shape == layer.output_shape
        return torch.einsum(f"{found.out}->{found.folds[2]}", out).numpy()
    function = {"conv1d": torch.conv1d, "conv2d": torch.conv2d, "conv3d": torch.conv3d}[layer.kind]
    one = torch.nn.functional.pad(one, [n for ends in reversed(layer.zeros) for n in ends])
    numbers = (list(layer.stride), [0] * len(layer.zeros), list(layer.dilation), layer.groups)
    result: Values = function(one, other, None, *numbers).numpy()
    return result


def stored(layer: Layer, inputs: Values, ker: Values) -> tuple[Values, Values]:
    """The user's tensors in storage order, of In only the rows that are read."""
    nest, n = layer.nest, layer.nest.extents
    if layer.kind == "matmul":
        return inputs.reshape(nest.shapes["In"]), ker.T.reshape(nest.shapes["Ker"])
    if layer.kind == "einsum":  # indices of a class are folded into one, as `Contraction` says
        found = layer.contraction
        one = np.einsum(f"{found.one}->{found.folds[0]}", inputs)
        other = np.einsum(f"{found.other}->{found.folds[1]}", ker)
        return one.reshape(nest.shapes["In"]), other.reshape(nest.shapes["Ker"])
    spatial = dict(zip(layer.spatial_axes, layer.input[2:], strict=True))
    seen = inputs.reshape(n.b, n.g, n.c, *(spatial.get(axis, 1) for axis in "dhw"))
    for dim, axis in enumerate("dhw", start=3):
        window = nest.windows[axis]
        seen = seen.take([window.source(row) for row in range(window.size)], axis=dim)
    return seen, ker.reshape(nest.shapes["Ker"])


def users_tensors(layer: Layer, seed: int) -> tuple[Values, Values]:
    generator = np.random.default_rng(seed)
    if layer.kind == "matmul":
        m, n, k = layer.input
        shapes = [(m, k), (k, n)]
    elif layer.kind == "einsum":
        shapes = [
            layer.contraction.sizes(layer.contraction.one),
            layer.contraction.sizes(layer.contraction.other),
        ]
    else:
        shapes = [layer.input, (layer.out_channels, layer.input[1] // layer.groups, *layer.kernel)]
    one, other = (generator.integers(-9, 10, shape).astype(np.float64) for shape in shapes)
    return one, other


@st.composite
def problems(draw: st.DrawFn, kind: str) -> tuple[Layer, Schedule, int]:
    layer = draw(layers(kinds=(kind,)))
    return layer, draw(schedules(st.just(layer.nest))), draw(st.integers(0, 99))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@pytest.mark.one_in(3)
def test_values_are_torch_values(kind: str, data: st.DataObject) -> None:
    layer, schedule, seed = data.draw(problems(kind))
    inputs, ker = users_tensors(layer, seed)
    out = simulate(schedule, *stored(layer, inputs, ker)).out
    assert out is not None
    right = by_torch(layer, inputs, ker)
    assert np.array_equal(out.reshape(right.shape), right)


@given(schedules())
def test_counting_alone_gives_the_same_words_and_memory(schedule: Schedule) -> None:
    nest = schedule.distribution.nest
    full = simulate(schedule, whole_numbers(nest, "In"), whole_numbers(nest, "Ker"))
    counted = simulate(schedule)
    assert counted.out is None
    assert (counted.received, counted.peak) == (full.received, full.peak)


def test_float32_stays_float32() -> None:
    layer = Layer.conv2d([2, 3, 5, 5], 4, 3, padding=1)
    grid = PerAxis(b=2, k=2)
    inputs, ker = (t.astype(np.float32) for t in users_tensors(layer, 0))
    out = simulate(Schedule(Distribution(layer.nest, grid), PassPlan()), *stored(layer, inputs, ker)).out
    assert out is not None
    assert out.dtype == np.float32
    assert np.array_equal(out.reshape(layer.output_shape), by_torch(layer, inputs, ker))


@pytest.mark.parametrize("axis", AXES)
def test_each_axis_alone(axis: str) -> None:
    """A grid along one axis, every stationary tensor: the pure strategies of the literature."""
    layer = Layer.conv3d([3, 6, 5, 5, 5], 6, 3, stride=2, padding=1, groups=3)
    inputs, ker = users_tensors(layer, 1)
    expected = by_torch(layer, inputs, ker)
    parts = min(3, getattr(layer.nest.extents, axis))
    d = Distribution(layer.nest, PerAxis().with_(axis, parts))
    for stationary in ("In", "Ker", "Out"):
        out = simulate(Schedule(d, PassPlan(stationary)), *stored(layer, inputs, ker)).out  # type: ignore[arg-type]
        assert out is not None
        assert np.array_equal(out.reshape(layer.output_shape), expected)
