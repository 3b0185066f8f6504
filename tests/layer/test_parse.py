# ruff: noqa: E501 (tables of whole messages)
"""Layer files: the layers that they describe, and the errors for wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.base.errors import InputError
from synth.layer.layer import Layer, load_layer, parse_layer

CONV = """\
conv2d:
  input: [32, 256, 14, 14]
  out_channels: 256
  kernel: [3, 3]
  padding: 1
"""


def complaint(text: str, filename: str = "conv.yaml") -> str:
    with pytest.raises(InputError) as caught:
        parse_layer(text, filename)
    return str(caught.value)


def edited(old: str, new: str) -> str:
    assert old in CONV
    return CONV.replace(old, new)


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
        (edited("conv2d", "<<"), "1:1: unknown key <<; known are conv1d, conv2d, conv3d, matmul, einsum, name"),
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
        ("name: x\n", "1:1: the file holds a name and no layer; write one of conv1d, conv2d, conv3d, matmul, einsum with its numbers"),
        ("{}", "1:1: the file holds no layer; write one of conv1d, conv2d, conv3d, matmul, einsum with its numbers"),
        ("", "1:1: the file holds no layer; write one of conv1d, conv2d, conv3d, matmul, einsum with its numbers"),
        ("# a\n", "1:1: the file holds no layer; write one of conv1d, conv2d, conv3d, matmul, einsum with its numbers"),
        ("network: {input: [1, 2]}\n", "1:1: the file holds a network, not a layer; plan it with `synth plan`, run it with `synth.parallelize`"),
        ("- 1\n", "1:1: the file holds a list, not a layer; write one of conv1d, conv2d, conv3d, matmul, einsum with its numbers"),
        ("conv2d\n", "1:1: the file holds conv2d, not a layer; write one of conv1d, conv2d, conv3d, matmul, einsum with its numbers"),
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
def test_errors_give_place_fault_and_remedy(text: str, message: str) -> None:
    assert complaint(text) == "conv.yaml:" + message


def test_hostile_file_names_stay_on_one_line() -> None:
    assert complaint("", "a\nb.yaml").startswith("a\\nb.yaml:1:1: ")


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
        message = str(error)
        assert message.startswith("x.yaml:")
        assert message.isprintable()
