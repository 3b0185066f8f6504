# ruff: noqa: E501 (tables of whole messages)
"""Layers: what the numbers must satisfy, and what is derived from them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import jsonschema
import numpy
import pytest
import torch
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.base.errors import InputError, UsageError
from synth.layer.layer import Layer, LayerError, layer_file_schema, parse_layer

SCHEMA = jsonschema.Draft202012Validator(layer_file_schema())


# --- what is derived


def test_a_layer_and_its_nest() -> None:
    layer = Layer.conv2d((32, 256, 14, 14), 256, 3, padding=1)
    assert layer.kernel == (3, 3)
    assert layer.output_shape == (32, 256, 14, 14)
    assert layer.spatial_axes == ("h", "w")
    assert layer.nest.shapes["In"] == (32, 1, 256, 1, 14, 14)
    assert layer.nest.shapes["Ker"] == (1, 256, 256, 1, 3, 3)
    assert layer.nest is layer.nest
    assert str(layer) == "conv2d 32x256x14x14 to 32x256x14x14, kernel 3x3, padding 1x1, float32"
    assert hash(layer) == hash(dataclasses.replace(layer))


def test_dimensions_of_each_kind() -> None:
    line = Layer.conv1d([2, 6, 40], 4, 5, stride=2, groups=2, dtype="float64")
    assert line.nest.extents._asdict() == {"b": 2, "g": 2, "d": 1, "h": 1, "w": 18, "c": 3, "k": 2}
    assert line.nest.word_bytes == 8
    assert str(line) == "conv1d 2x6x40 to 2x4x18, kernel 5, stride 2, 2 groups, float64"
    cube = Layer.conv3d((1, 2, 8, 9, 10), 3, (1, 2, 3))
    assert cube.output_shape == (1, 3, 8, 8, 8)
    assert [cube.nest.windows[axis].kernel for axis in cube.spatial_axes] == [1, 2, 3]
    product = Layer.matmul(3, 4, 5)
    assert product.output_shape == (3, 4)
    assert product.nest.words == {"In": 15, "Ker": 20, "Out": 12}
    assert (product.spatial_axes, product.out_channels, product.name) == ((), 4, "matmul")
    assert str(product) == "matmul 3x5 by 5x4, float32"


def test_the_problem_of_a_plan() -> None:
    assert list(Layer.conv2d((32, 256, 14, 14), 256, 3, padding=1).to_json().items()) == [
        ("extents", {"b": 32, "c": 256, "h": 14, "w": 14, "k": 256, "r": 3, "s": 3}),
        ("stride", [1, 1]),
        ("padding", [1, 1]),
        ("dilation", [1, 1]),
        ("groups", 1),
        ("dtype", "float32"),
        ("kind", "conv2d"),
        ("input", [32, 256, 14, 14]),
        ("out_channels", 256),
        ("kernel", [3, 3]),
    ]
    cube = Layer.conv3d((1, 8, 4, 5, 6), 4, (1, 2, 3), groups=2)
    sizes = {"b": 1, "g": 2, "c": 4, "d": 4, "h": 4, "w": 4, "k": 2, "t": 1, "r": 2, "s": 3}
    assert cube.to_json()["extents"] == sizes


def test_numbers_from_numpy_and_torch_become_ints() -> None:
    layer = Layer.conv2d(torch.empty(2, 4, 9, 9).shape, numpy.int64(8), numpy.array([3, 3]))
    assert layer == Layer.conv2d((2, 4, 9, 9), 8, 3)
    assert {type(n) for n in (*layer.input, layer.out_channels, *layer.kernel)} == {int}


# --- built in Python: no place, but which dimension


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"kernel": (3, 9), "input": (1, 4, 7, 7)},
            "conv2d along w: kernel 9 does not fit the padded input 7; "
            "pad by at least 1 or use a kernel of at most 7",
        ),
        (
            {"kernel": 5, "dilation": 3, "padding": 2, "input": (1, 4, 7, 99)},
            "conv2d along h: kernel 5 with dilation 3 spans 13 and does not fit the padded input 11; "
            "pad by at least 3 or use a kernel of at most 4",
        ),
        ({"groups": 3}, "groups 3 does not divide the 4 input channels; use a divisor of 4"),
        ({"groups": 4, "out_channels": 6}, "groups 4 does not divide the 6 output channels; use a divisor of 2"),
        ({"input": (4, 9, 9)}, "conv2d input has 3 entries, needs 4: N, C, H, W"),
        ({"input": 9}, "conv2d input is 9; give the list N, C, H, W"),
        ({"input": (1, 0, 9, 9)}, "conv2d: input C is 0, less than 1; use at least 1"),
        ({"input": (2**40 + 1, 4, 9, 9)}, "conv2d: input N is 1099511627777, more than 1099511627776; use at most 1099511627776"),
        ({"kernel": (3, 3, 3)}, "conv2d kernel has 3 entries, needs 2: h, w"),
        ({"kernel": (3,)}, "conv2d kernel has 1 entry, needs 2: h, w"),
        ({"kernel": "33"}, "conv2d kernel is '33'; give an integer or the list h, w"),
        ({"kernel": None}, "conv2d kernel is None; give an integer or the list h, w"),
        ({"stride": 0}, "conv2d: stride is 0, less than 1; use at least 1"),
        ({"stride": (1, True)}, "conv2d: stride is True, not an integer; give a whole number"),
        ({"stride": 1.5}, "conv2d stride is 1.5; give an integer or the list h, w"),
        ({"padding": -1}, "conv2d: padding is -1, less than 0; use at least 0"),
        ({"dilation": 0}, "conv2d: dilation is 0, less than 1; use at least 1"),
        ({"out_channels": 10**9999}, "conv2d: out_channels is over 2**64, more than 1099511627776; use at most 1099511627776"),
        ({"dtype": "float"}, "dtype float is unknown; known are float64, float32, float16, bfloat16"),
        ({"dtype": 32}, "dtype 32 is unknown; known are float64, float32, float16, bfloat16"),
        ({"name": "a\nb"}, "name 'a\\nb' holds a control character or line break; use 1 to 64 printable characters on one line"),
        ({"name": "x" * 65}, "name has 65 characters; use 1 to 64 printable characters on one line"),
        ({"name": 3}, "name is 3, not a text; use 1 to 64 printable characters on one line"),
    ],
)  # fmt: skip
def test_impossible_layers_from_python(arguments: dict[str, Any], message: str) -> None:
    good = {"input": (1, 4, 9, 9), "out_channels": 4, "kernel": 3}
    with pytest.raises(UsageError) as caught:
        Layer.conv2d(**{**good, **arguments})
    assert str(caught.value) == message


def test_every_constructor_checks() -> None:
    layer = Layer.conv2d((1, 4, 9, 9), 4, 3)
    with pytest.raises(LayerError, match="stride is 0"):
        dataclasses.replace(layer, stride=(0, 1))
    with pytest.raises(LayerError, match=r"layer kind conv2 is unknown; did you mean conv2d\?"):
        Layer("conv2", (1, 4, 9, 9), 4, (3, 3))  # type: ignore[arg-type]
    with pytest.raises(LayerError, match="matmul out_channels is 9, but input n is 4; leave it out"):
        Layer("matmul", (3, 4, 5), 9, ())
    with pytest.raises(LayerError, match="matmul groups is 2; leave it out"):
        Layer("matmul", (3, 4, 5), 4, (), groups=2)
    with pytest.raises(LayerError, match="matmul kernel has 1 entry, needs none"):
        Layer("matmul", (3, 4, 5), 4, (3,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        layer.groups = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        (3, 2, 1, 1, 4),  # both taps in the padding, the input between them
        (1, 2, 100, 50, 3),  # one window, before the input
        (1, 1, 100, 5, 1),
        (2, 1, 8, 3, 1),
    ],
)
def test_a_layer_that_reads_nothing_is_refused(
    size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    with pytest.raises(LayerError, match=f"of the {size} input positions is read; use another padding"):
        Layer.conv1d((1, 1, size), 1, kernel, stride=stride, padding=padding, dilation=dilation)


def test_padding_beyond_the_largest_extent_is_refused() -> None:
    with pytest.raises(LayerError, match="output positions, more than 1099511627776; pad by less"):
        Layer.conv1d((1, 1, 2**40), 1, 1, padding=1)


# --- plans


PROBLEM = Layer.conv2d((32, 256, 14, 14), 256, 3, padding=1).to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride": [0, 1]}, "problem.stride: stride is 0, less than 1; use at least 1"),
        ({"groups": 3}, "problem.groups: groups 3 does not divide the 256 input channels; use a divisor of 256"),
        ({"groups": 2}, "problem.extents is {'b': 32, 'c': 256, 'h': 14, 'w': 14, 'k': 256, 'r': 3, 's': 3}, but the layer makes it "
         "{'b': 32, 'g': 2, 'c': 128, 'h': 14, 'w': 14, 'k': 128, 'r': 3, 's': 3}; write the plan anew with `synth plan`"),
        ({"kernel": 3}, "problem.kernel is 3, but the layer makes it [3, 3]; write the plan anew with `synth plan`"),
        ({"kernel": [3, 3.0]}, "problem.kernel: kernel is 3.0, not an integer; give a whole number"),
        ({"groups": True}, "problem.groups: groups is True, not an integer; give a whole number"),
        ({"input": {"N": 3}}, "problem.input: conv2d input is {'N': 3}; give the list N, C, H, W"),
        ({"kind": ["conv2d"]}, "problem.kind: layer kind ['conv2d'] is unknown; did you mean conv2d?"),
        ({"dtype": None}, "problem.dtype: dtype None is unknown; known are float64, float32, float16, bfloat16"),
        ({"extents": None}, "problem.extents is None, but the layer makes it "
         "{'b': 32, 'c': 256, 'h': 14, 'w': 14, 'k': 256, 'r': 3, 's': 3}; write the plan anew with `synth plan`"),
    ],
)  # fmt: skip
def test_a_tampered_plan_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Layer.from_json({**PROBLEM, **change}, "plan.json")
    assert str(caught.value) == "plan.json: " + message


def test_extents_of_a_plan_must_be_the_layers_own() -> None:
    assert Layer.from_json(PROBLEM, "p", "n").name == "n"
    assert Layer.from_json({**PROBLEM, "new": 1}, "p").name == "conv2d"
    reordered = dict(sorted(PROBLEM["extents"].items(), reverse=True))
    assert Layer.from_json({**PROBLEM, "extents": reordered}, "p").to_json() == PROBLEM
    for key, value in [("c", 128), ("b", 32.0), ("h", True), ("extra", 1)]:
        with pytest.raises(InputError, match=r"p: problem\.extents is .*, but the layer makes it "):
            Layer.from_json({**PROBLEM, "extents": {**PROBLEM["extents"], key: value}}, "p")
    for key in PROBLEM:
        with pytest.raises(InputError, match=f"p: problem lacks {key}; write the plan anew"):
            Layer.from_json({k: v for k, v in PROBLEM.items() if k != key}, "p")
    for nothing in (None, [], "conv2d", 3):
        with pytest.raises(InputError, match="p: problem is not an object; write the plan anew"):
            Layer.from_json(nothing, "p")


# --- properties


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Small layers of every kind, the windows of which may reach far into the padding."""
    small = st.integers(1, 6)
    name = draw(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=9))
    dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
    kind = draw(st.sampled_from(["conv1d", "conv2d", "conv3d", "matmul"]))
    if kind == "matmul":
        return Layer.matmul(*draw(st.tuples(small, small, small)), dtype=dtype, name=name)
    sizes, kernel, stride, padding, dilation = [], [], [], [], []
    for _ in range(int(kind[4])):
        sizes.append(draw(st.integers(1, 15)))
        padding.append(draw(st.integers(0, 8)))
        dilation.append(draw(small))
        fits = (sizes[-1] + 2 * padding[-1] - 1) // dilation[-1] + 1
        kernel.append(draw(st.integers(1, min(6, fits))))
        stride.append(draw(small))
    groups = draw(st.integers(1, 3))
    numbers = (
        [draw(small), groups * draw(small), *sizes],
        groups * draw(small),
        kernel,
        stride,
        padding,
        dilation,
    )
    try:
        return Layer(kind, *numbers, groups, dtype, name)  # type: ignore[arg-type]
    except LayerError as error:
        assume("none of the" not in str(error))  # the one thing that was not ruled out above
        raise


def as_yaml(layer: Layer) -> str:
    keys = ["input", "dtype"]
    if layer.kind != "matmul":
        keys += ["out_channels", "kernel", "stride", "padding", "dilation", "groups"]
    values = {key: getattr(layer, key) for key in keys}
    lines = [f"  {key}: {list(v) if isinstance(v, tuple) else v}" for key, v in values.items()]
    return "\n".join([f"{layer.kind}:", *lines, f"name: {json.dumps(layer.name, ensure_ascii=False)}"])


@settings(deadline=None)
@given(layers())
def test_round_trips(layer: Layer) -> None:
    assert parse_layer(as_yaml(layer), "x.yaml") == layer
    assert Layer.from_json(json.loads(json.dumps(layer.to_json())), "p", layer.name) == layer
    SCHEMA.validate(yaml.safe_load(as_yaml(layer)))


@settings(deadline=None)
@given(layers())
def test_torch_gives_the_same_shape(layer: Layer) -> None:
    if layer.kind == "matmul":
        m, n, k = layer.input
        shape = (torch.empty(m, k, device="meta") @ torch.empty(k, n, device="meta")).shape
    else:
        In = torch.empty(layer.input, device="meta")
        Ker = torch.empty(layer.out_channels, layer.input[1] // layer.groups, *layer.kernel, device="meta")
        convolve = getattr(torch.nn.functional, layer.kind)
        shape = convolve(In, Ker, None, layer.stride, layer.padding, layer.dilation, layer.groups).shape
    assert layer.output_shape == tuple(shape)
    n = layer.nest.extents
    assert (n.b, n.g * n.k) == layer.output_shape[:2]
    assert tuple(getattr(n, axis) for axis in layer.spatial_axes) == layer.output_shape[2:]


@settings(deadline=None)
@given(layers())
def test_a_layer_that_exists_reads_something(layer: Layer) -> None:
    assert layer.nest.real_work > 0
    assert min(layer.nest.shapes["In"]) > 0


JSONISH = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.sampled_from(sorted(PROBLEM)), JSONISH)
def test_any_tampering_is_refused_or_changes_nothing(key: str, value: object) -> None:
    try:
        layer = Layer.from_json({**PROBLEM, key: value}, "plan.json")
    except InputError as error:
        message = str(error)
        assert message.startswith("plan.json: problem")
        assert message.isprintable()
    else:
        assert layer.to_json() == {**PROBLEM, key: value}


def test_import_is_light() -> None:
    heavy = {"torch", "numpy", "sympy", "yaml", "msgspec", "difflib", "cvxpy", "networkx"}
    code = f"import sys, synth.layer.layer; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
