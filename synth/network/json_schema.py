"""The JSON Schemas of network files and machine files, for editors."""

from __future__ import annotations

from typing import Any

from synth.layer.nest import WORD_BYTES
from synth.machine.collectives import ALGORITHMS
from synth.machine.file import COMPUTE, INSTRUCTION_SETS, LEVEL, TOP
from synth.network.arguments import DIVISIONS, FLAGS
from synth.network.kinds import KINDS
from synth.network.row_map_entries import MODES

_COUNT = {"type": "integer", "minimum": 1}
_INTS = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "array", "items": {"type": "integer"}}]}
_RUNS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 4},
    "description": "runs of rows: dimension, first input row (-1: none), number of rows, step (1)",
}


def network_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a network file; it does not check shapes and edges."""
    kinds = {kind: _kind(kind) for kind in KINDS}
    layer = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "from": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
            },
            **kinds,
        },
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in kinds],
    }
    block = {
        "type": "object",
        "properties": {"repeat": _COUNT, "layers": {"$ref": "#/$defs/layers"}},
        "required": ["repeat", "layers"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "synth network file",
        "type": "object",
        "properties": {
            "network": {"type": "string"},
            "input": {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 5},
            "dtype": {"type": "string"},
            "layers": {"$ref": "#/$defs/layers"},
        },
        "required": ["input", "layers"],
        "additionalProperties": False,
        "$defs": {"layers": {"type": "array", "minItems": 1, "items": {"anyOf": [layer, block]}}},
    }


def _kind(kind: str) -> dict[str, Any]:
    known = KINDS[kind]
    properties: dict[str, Any]
    properties = {key: {"type": "boolean"} if key in FLAGS else _INTS for key in known.keys}
    if "padding_mode" in properties:
        properties["padding_mode"] = {"enum": list(MODES)}
        ends = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}
        properties["padding"] = {"anyOf": [_INTS, {"type": "array", "items": ends}, {"const": "same"}]}
    if "divided" in properties:
        properties["divided"] = {"enum": list(DIVISIONS)}
    if "rows" in properties:
        properties["rows"] = _RUNS
    required = list(known.required)
    return {
        "type": ["object", "null"] if not required else "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def machine_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a machine file; it does not check that levels nest."""
    number = {"type": "number", "minimum": 0}
    level: dict[str, Any] = dict.fromkeys(LEVEL, number)
    level |= {"name": {"type": "string"}, "kind": {"type": "string"}, "ranks": _COUNT, "links": _COUNT}
    steps = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "array", "minItems": 2, "maxItems": 2},
    }
    level |= {"small": steps, "pieces": steps}
    compute: dict[str, Any] = dict.fromkeys(COMPUTE, number)
    compute |= {"narrow": steps, "rates": _object(dict.fromkeys(WORD_BYTES, number), [])}
    processor = {"type": "string", "pattern": f"^({'|'.join(INSTRUCTION_SETS)})( \\S+ \\S+)?$"}
    top: dict[str, Any] = {
        "machine": {"type": "string"},
        "source": {"type": "string"},
        "levels": {"type": "array", "minItems": 1, "items": _object(level, ["name", "alpha", "beta"])},
        "compute": _object(compute, ["rate"]),
        "memory": {"type": ["string", "integer"]},
        "overlap": {"type": "number", "minimum": 0, "maximum": 1},
        "errors": {"type": "object", "additionalProperties": number},  # of measured numbers, relative
        "algorithms": {"type": "array", "minItems": 1, "items": {"enum": list(ALGORITHMS)}},
        "processor": {"anyOf": [processor, {"type": "array", "minItems": 1, "items": processor}]},
    }
    assert set(top) == set(TOP)
    schema = _object(top, ["levels", "compute"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "synth machine file",
        **schema,
    }


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
