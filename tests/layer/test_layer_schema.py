"""The schema of the layer file agrees with what reads it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from synth.base.errors import InputError
from synth.layer.layer import layer_file_schema, parse_layer

SCHEMA = jsonschema.Draft202012Validator(layer_file_schema())


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
    with pytest.raises(InputError):
        parse_layer(json.dumps(wrong), "x.yaml")


def test_schema_is_a_schema_and_takes_both_forms_of_matmul() -> None:
    jsonschema.Draft202012Validator.check_schema(layer_file_schema())
    for body in ({"m": 1, "n": 2, "k": 3}, {"input": [1, 2, 3], "dtype": "bfloat16"}):
        SCHEMA.validate({"matmul": body, "name": "x"})
