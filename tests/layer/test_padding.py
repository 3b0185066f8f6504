"""Zeros around an input: other numbers before and after, "same", and what no layer has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from synth.base.errors import InputError, UsageError
from synth.layer.layer import Layer, LayerError, parse_layer


def test_zeros_before_and_after() -> None:
    layer = Layer.conv3d((2, 3, 5, 6, 7), 4, 3, stride=(2, 1, 1), padding=[[2, 0], 1, (1, 1)])
    assert layer.padding == ((2, 0), 1, 1)
    assert layer.zeros == ((2, 0), (1, 1), (1, 1))
    assert layer.output_shape == (2, 4, 3, 6, 7)
    assert "padding (2, 0)x1x1" in str(layer)
    assert layer.to_json()["padding"] == [[2, 0], 1, 1]
    assert Layer.from_json(layer.to_json(), "plan", layer.name) == layer


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("kernel", "dilation", "padding"), [(3, 1, 1), (4, 1, (1, 2)), (2, 3, (1, 2))])
def test_same_keeps_the_extent_as_torch_does(kernel: int, dilation: int, padding: object) -> None:
    layer = Layer.conv1d((1, 2, 9), 3, kernel, dilation=dilation, padding="same")
    assert layer.padding == (padding,)
    given, ker = torch.randn(1, 2, 9), torch.randn(3, 2, kernel)
    wide = torch.nn.functional.pad(given, layer.zeros[0])
    plain = torch.conv1d(wide, ker, dilation=dilation)
    torch.testing.assert_close(torch.conv1d(given, ker, dilation=dilation, padding="same"), plain)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"padding": "same", "stride": 2},
            "conv2d padding is same, which needs a stride of 1; write numbers",
        ),
        ({"padding": "valid"}, "conv2d padding is 'valid'; give an integer or the list h, w"),
        (
            {"padding": [[1, 2, 3], 0]},
            "padding [1, 2, 3] has 3 numbers for one dimension; write those before and",
        ),
        ({"padding": [[1, -2], 0]}, "padding is -2, less than 0; use at least 0"),
        (
            {"padding": [[1, 0], 0], "transposed": True},
            "padding [1, 0] is not the same at both ends of a tran",
        ),
    ],
)
def test_padding_that_no_layer_has(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(LayerError) as fault:
        Layer.conv2d((1, 2, 9, 9), 3, 3, **arguments)
    assert said in str(fault.value)


def test_padding_of_a_file() -> None:
    text = "conv2d:\n  input: [1, 2, 9, 8]\n  out_channels: 3\n  kernel: [3, 2]\n  padding: "
    assert parse_layer(text + "[[2, 0], 1]", "a.yaml").padding == ((2, 0), 1)
    assert parse_layer(text + "same", "a.yaml").padding == (1, (0, 1))
    with pytest.raises(InputError, match="5:13: padding is -1, less than 0; use at least 0"):
        parse_layer(text + "[[2, -1], 1]", "a.yaml")


def test_two_numbers_of_zeros_for_one_dimension_are_told_apart() -> None:
    with pytest.raises(UsageError, match=r"has 2 entries, needs 1: w; write \[\[before, after\]\] for"):
        Layer.conv1d((1, 4, 9), 4, 3, padding=(2, 1))
    assert Layer.conv1d((1, 4, 9), 4, 3, padding=((2, 1),)).padding == ((2, 1),)
