# ruff: noqa: E501 (tables of whole messages)
"""Layers: what the numbers must satisfy, what is derived from them, and the files they come from."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.errors import InputError, UsageError
from synth.layer import Layer, LayerError, layer_file_schema, load_layer, parse_layer

CONV = """\
conv2d:
  input: [32, 256, 14, 14]
  out_channels: 256
  kernel: [3, 3]
  padding: 1
"""
SCHEMA = jsonschema.Draft202012Validator(layer_file_schema())


def complaint(text: str, filename: str = "conv.yaml") -> str:
    with pytest.raises(InputError) as caught:
        parse_layer(text, filename)
    return str(caught.value)


def assert_one_line(message: str, start: str) -> None:
    assert message.startswith(start)
    assert message.isprintable()


def edited(old: str, new: str) -> str:
    assert old in CONV
    return CONV.replace(old, new)


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
    assert list(parse_layer(CONV, "a.yaml").to_json().items()) == [
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


def test_every_door_checks() -> None:
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


# --- files


def test_a_file_and_its_name(tmp_path: Path) -> None:
    path = tmp_path / "conv4.yaml"
    path.write_text(CONV)
    assert load_layer(path) == load_layer(str(path))
    assert load_layer(path).name == "conv4"
    path.write_text(CONV + "name: stage 4, Größe\n")
    assert load_layer(path).name == "stage 4, Größe"
    assert parse_layer(CONV, "").name == "conv2d"
    assert parse_layer(CONV, "a\nb" + "c" * 99 + ".yaml").name == "a_b" + "c" * 61
    assert parse_layer(CONV + "name: 2024\n", "a").name == "2024"


def test_matmul_is_written_in_two_ways() -> None:
    layer = Layer.matmul(64, 32, 16, "float64", name="product")
    listed = "matmul:\n  input: [64, 32, 16]\n  dtype: float64\n"
    keys = "matmul: {m: 64, n: 32, k: 16, dtype: float64}"
    assert parse_layer(listed, "product.yaml") == parse_layer(keys, "product.yaml") == layer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# 9x9\nconv2d:\n  input: [1, 4, 7, 7]\n  out_channels: 4\n  kernel: [9, 9]\n",
            "5:12: kernel 9 does not fit the padded input 7; pad by at least 1 or use a kernel of at most 7",
        ),
        (edited("[3, 3]", "17"), "4:11: kernel 17 does not fit the padded input 16; pad by at least 2 or use a kernel of at most 16"),
        (edited("kernel", "kernal"), "4:3: unknown key kernal of conv2d; did you mean kernel?"),
        (edited("conv2d", "conv2D"), "1:1: unknown key conv2D; did you mean conv2d?"),
        (edited("conv2d", "<<"), "1:1: unknown key <<; known are conv1d, conv2d, conv3d, matmul, name"),
        (edited("14, 14]", "14]"), "2:10: conv2d input has 3 entries, needs 4: N, C, H, W"),
        (edited("14, 14]", "0, 14]"), "2:20: input H is 0, less than 1; use at least 1"),
        (edited("[3, 3]", "[3, 3, 3]"), "4:11: conv2d kernel has 3 entries, needs 2: h, w"),
        (edited("[3, 3]", "[3, [3]]"), "4:15: an entry of kernel is a list; write an integer"),
        (edited("[3, 3]", "[3, 1e3]"), "4:15: an entry of kernel is 1e3, which is a fraction or a float; write it in decimal digits alone"),
        (edited("[3, 3]", "{h: 3}"), "4:11: kernel is a mapping; write integers"),
        (edited("  kernel: [3, 3]\n", ""), "1:1: conv2d lacks kernel; write kernel: and its size along h, w"),
        (edited("  out_channels: 256\n", ""), "1:1: conv2d lacks out_channels; write out_channels: and their number"),
        (edited("  input: [32, 256, 14, 14]\n", ""), "1:1: conv2d lacks input; write input: [N, C, H, W]"),
        (edited("padding: 1", "padding: yes"), "5:12: padding is yes, which YAML reads as true or false; write an integer"),
        (edited("padding: 1", "padding: -1"), "5:12: padding is -1, less than 0; use at least 0"),
        (edited("padding: 1", "padding:"), "5:11: padding is empty; write an integer"),
        (edited("padding: 1", "groups: 3"), "5:11: groups 3 does not divide the 256 input channels; use a divisor of 256"),
        (edited("padding: 1", "dtype: int8"), "5:10: dtype int8 is unknown; known are float64, float32, float16, bfloat16"),
        (edited("padding: 1", "dtype: [float32]"), "5:10: dtype is a list; write one text"),
        (edited("padding: 1", "out_channels: 8"), "5:3: out_channels is given twice, first on line 3; keep one of the two"),
        (CONV + "name: ''\n", "6:7: name is empty; write a text or leave it out"),
        (CONV + "name: [a]\n", "6:7: name is a list; write one text"),
        (CONV + 'name: "a\\tb"\n', "6:7: name 'a\\tb' holds a control character or line break; use 1 to 64 printable characters on one line"),
        (CONV + "conv1d: {}\n", "6:1: conv1d is a second layer after conv2d; keep one layer per file"),
        ("name: x\n", "1:1: the file holds a name and no layer; write one of conv1d, conv2d, conv3d, matmul with its numbers"),
        ("{}", "1:1: the file holds no layer; write one of conv1d, conv2d, conv3d, matmul with its numbers"),
        ("", "1:1: the file holds no layer; write one of conv1d, conv2d, conv3d, matmul with its numbers"),
        ("# a\n", "1:1: the file holds no layer; write one of conv1d, conv2d, conv3d, matmul with its numbers"),
        ("- 1\n", "1:1: the file holds a list, not a layer; write one of conv1d, conv2d, conv3d, matmul with its numbers"),
        ("conv2d\n", "1:1: the file holds conv2d, not a layer; write one of conv1d, conv2d, conv3d, matmul with its numbers"),
        ("conv2d:\n", "1:8: conv2d is empty, not a mapping; write input, out_channels, kernel under it"),
        ("conv2d: [1]\n", "1:9: conv2d is a list, not a mapping; write input, out_channels, kernel under it"),
        ("matmul: {m: 1, n: 2}", "1:1: matmul lacks k; write m, n and k, or input: [m, n, k]"),
        ("matmul: {m: 1, n: 2, k: 0}", "1:25: input k is 0, less than 1; use at least 1"),
        ("matmul: {m: 1, n: 2, k: [3]}", "1:25: an entry of input is a list; write an integer"),
        ("matmul: {m: 1, input: [1, 2, 3]}", "1:13: matmul has both input and m; write input: [m, n, k] alone"),
        ("matmul: {input: [1, 2]}", "1:17: matmul input has 2 entries, needs 3: m, n, k"),
        ("matmul: {input: 5}", "1:17: matmul input is 5; give the list m, n, k"),
        ("matmul: {}", "1:1: matmul lacks input; write input: [m, n, k]"),
        ("matmul: {input: [1, 2, 3], stride: 1}", "1:28: unknown key stride of matmul; known are input, m, n, k, dtype"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_where_what_and_the_remedy(text: str, message: str) -> None:
    assert complaint(text) == "conv.yaml:" + message


def test_hostile_file_names_stay_on_one_line() -> None:
    assert complaint("", "a\nb.yaml").startswith("a\\nb.yaml:1:1: ")


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
    """Small layers of every kind; spatial numbers that do not make a layer are drawn again."""
    small = st.integers(1, 6)
    name = draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9))
    assume(name.isprintable() and name.strip())
    dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
    kind = draw(st.sampled_from(["conv1d", "conv2d", "conv3d", "matmul"]))
    if kind == "matmul":
        return Layer.matmul(*draw(st.tuples(small, small, small)), dtype=dtype, name=name)
    rank = int(kind[4])
    groups = draw(st.integers(1, 3))
    input = [
        draw(small),
        groups * draw(small),
        *draw(st.lists(st.integers(1, 15), min_size=rank, max_size=rank)),
    ]
    kernel, stride, dilation = (draw(st.lists(small, min_size=rank, max_size=rank)) for _ in range(3))
    padding = draw(st.lists(st.integers(0, 8), min_size=rank, max_size=rank))
    try:
        return Layer(
            kind,  # type: ignore[arg-type]
            *(input, groups * draw(small), kernel, stride, padding, dilation, groups, dtype, name),
        )
    except LayerError:
        assume(False)
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
    import yaml

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


WORDS = st.sampled_from(
    ["conv2d:", "conv3d", "input: ", "kernel: ", "name: ", "matmul: ", "[1, 4, 9, 9]", "3", "{", "}", "[", "]",
     ": ", ", ", "\n", "  ", "- ", "-1", "yes", "'", '"', "&a ", "*a", "!!int ", "#", "|\n", "out_channels: 4\n"]
)  # fmt: skip


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(WORDS, max_size=30).map("".join)))
def test_garbage_raises_nothing_but_input_errors(text: str) -> None:
    try:
        parse_layer(text, "x.yaml")
    except InputError as error:
        assert_one_line(str(error), "x.yaml:")


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
        assert_one_line(str(error), "plan.json: problem")
    else:
        assert layer.to_json() == {**PROBLEM, key: value}


# --- the schema, and what an import costs


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"name": "x"},
        {"conv2d": {"input": [1, 1, 9], "out_channels": 1, "kernel": 3}},
        {"conv2d": {"input": [1, 1, 9, 9], "out_channels": 1}},
        {"conv2d": {"input": [1, 1, 9, 9], "out_channels": 1, "kernel": 0}},
        {"conv2d": {"input": [1, 1, 9, 9], "out_channels": 1, "kernel": 3, "kernal": 3}},
        {"conv2d": {"input": [1, 1, 9, 9], "out_channels": 1, "kernel": 3}, "name": "a\nb"},
        {"matmul": {"m": 1, "n": 2}},
        {"matmul": {"m": 1, "n": 2, "k": 3, "input": [1, 2, 3]}},
        {"matmul": {"input": [1, 2, 3]}, "conv1d": {"input": [1, 1, 9], "out_channels": 1, "kernel": 3}},
    ],
)
def test_schema_and_reader_refuse_alike(wrong: dict[str, Any]) -> None:
    assert not SCHEMA.is_valid(wrong)
    complaint(json.dumps(wrong))


def test_schema_is_a_schema_and_takes_both_forms_of_matmul() -> None:
    jsonschema.Draft202012Validator.check_schema(layer_file_schema())
    for body in ({"m": 1, "n": 2, "k": 3}, {"input": [1, 2, 3], "dtype": "bfloat16"}):
        SCHEMA.validate({"matmul": body, "name": "x"})


def test_import_is_light() -> None:
    heavy = {"torch", "numpy", "sympy", "yaml", "msgspec", "difflib", "cvxpy", "networkx"}
    code = f"import sys, synth.layer; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
