"""The JSON Schema of layer files, with which an editor can check a file."""

from __future__ import annotations

from typing import Any

from synth.layer.einsum import EINSUM_REST, EXAMPLE
from synth.layer.nest import WORD_BYTES
from synth.layer.validate import (
    CONV_REQUIRED,
    DEFAULTS,
    INPUT_ENTRIES,
    KINDS,
    MATMUL_KEYS,
    MAX_NAME,
    PER_AXIS_KEYS,
    RANGES,
    SPATIAL_AXES,
)

_MEANING = {
    "out_channels": "output channels K of all groups together",
    "kernel": "kernel positions per dimension",
    "stride": "input positions from one window to the next",
    "padding": "zeros at both ends of each dimension, or [before, after]; same: the extent stays",
    "dilation": "input positions from one kernel position to the next",
    "groups": "divides the input channels and the output channels",
    "output_padding": "positions more at the end of a transposed convolution's output",
}


def layer_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a layer file.

    The schema accepts every file that `load_layer` accepts, if the file is read as YAML 1.2. It cannot
    check relations between numbers, such as whether a kernel fits its input.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "synth layer file",
        "type": "object",
        "properties": {
            **{kind: _matmul() if kind == "matmul" else _conv(kind) for kind in KINDS if kind != "einsum"},
            "einsum": {
                "type": "string",
                "pattern": r"^[A-Za-z ]*,[A-Za-z ]*->[A-Za-z ]*$",
                "description": f"two operands and the result as torch.einsum has them, such as {EXAMPLE}",
            },
            "extents": {
                "type": "object",
                "propertyNames": {"pattern": "^[A-Za-z]$"},
                "additionalProperties": _integer("input"),
                "description": "the extent of each index of an einsum",
            },
            "dtype": {**_dtype(), "description": "of an einsum"},
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_NAME,
                "pattern": r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+$",
                "description": "free text for reports; by default the name of the file",
            },
        },
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in KINDS],
        "dependentRequired": {"einsum": ["extents"], **{key: ["einsum"] for key in EINSUM_REST}},
    }


def _integer(key: str) -> dict[str, Any]:
    least, most = RANGES[key]
    return {"type": "integer", "minimum": least, "maximum": most}


def _list(key: str, length: int) -> dict[str, Any]:
    return {"type": "array", "items": _integer(key), "minItems": length, "maxItems": length}


def _padding(axes: int) -> dict[str, Any]:
    ends = {"oneOf": [_integer("padding"), _list("padding", 2)]}
    mixed = {"type": "array", "items": ends, "minItems": axes, "maxItems": axes}
    return {"oneOf": [_integer("padding"), mixed, {"const": "same"}]}


def _input(kind: str) -> dict[str, Any]:
    names = INPUT_ENTRIES[kind]
    return {**_list("input", len(names)), "description": ", ".join(names)}


def _dtype() -> dict[str, Any]:
    return {"enum": list(WORD_BYTES), "default": "float32"}


def _conv(kind: str) -> dict[str, Any]:
    properties: dict[str, Any] = {"input": _input(kind)}
    for key, meaning in _MEANING.items():
        value = _integer(key)
        if key == "padding":
            value = _padding(len(SPATIAL_AXES[kind]))
        elif key in (*PER_AXIS_KEYS, "output_padding"):
            value = {"oneOf": [value, _list(key, len(SPATIAL_AXES[kind]))]}
        default = {"default": DEFAULTS[key]} if key in DEFAULTS else {}
        properties[key] = {**value, **default, "description": meaning}
    properties["transposed"] = {"type": "boolean", "default": False, "description": "conv_transpose1d/2d/3d"}
    properties["dtype"] = _dtype()
    return {
        "type": "object",
        "properties": properties,
        "required": list(CONV_REQUIRED),
        "additionalProperties": False,
    }


def _matmul() -> dict[str, Any]:
    values = {"input": _input("matmul"), **{key: _integer("input") for key in "mnk"}, "dtype": _dtype()}
    return {
        "type": "object",
        "properties": {key: values[key] for key in MATMUL_KEYS},
        "oneOf": [
            {"required": ["input"], "not": {"anyOf": [{"required": [key]} for key in "mnk"]}},
            {"required": ["m", "n", "k"], "not": {"required": ["input"]}},
        ],
        "additionalProperties": False,
    }
