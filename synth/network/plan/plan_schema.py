"""The JSON Schema of plan files of networks."""

from __future__ import annotations

from typing import Any

from synth.network.plan.plan_json import KEYS, LAYER_KEYS, SCHEMA

_TEXT, _COUNT, _NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}
_TENSORS = {"type": "array", "items": {"enum": ["in", "ker", "out"]}}
_TYPES: dict[str, dict[str, Any]] = {
    "schema": {"const": SCHEMA},
    "objective": {"enum": ["words", "time"]},
    "pass": {"enum": ["forward", "training"]},
    "kept": _TENSORS,
    "machine": {"type": ["string", "null"]},
    "memory_limit": {"type": ["integer", "null"], "description": "bytes per process"},
    "best_single": {"type": ["string", "null"]},
    "ratio": {"type": ["number", "null"]},
    **dict.fromkeys(("name", "method", "digest"), _TEXT),
    **dict.fromkeys(("procs", "word_bytes", "memory_words", "resident_words"), _COUNT),
    **dict.fromkeys(("cost", "lower_bound", "gap"), _NUMBER),
    "redistributions": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"from": _TEXT, "to": _TEXT, "onto": _TEXT, "words": _COUNT, "cost": _NUMBER},
            "required": ["from", "to", "onto", "words", "cost"],
        },
    },
    "singles": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": _TEXT, "cost": {"type": ["number", "null"]}, "why": _TEXT},
            "required": ["name", "cost", "why"],
        },
    },
}
_LAYER: dict[str, dict[str, Any]] = {
    "name": _TEXT,
    "grid": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
    "order": {"type": "array", "items": _TEXT},
    "turned": {"type": "array", "items": {"enum": ["d", "h", "w"]}},
    "stationary": {"enum": ["in", "ker", "out"]},
    "panels": _COUNT,
    "cost": _NUMBER,
    "words": {"type": "object", "additionalProperties": _COUNT},
    "memory_words": _COUNT,
    "gradients": _TENSORS,
    "whole": {"type": "boolean", "description": "whether ranks hold whole slices of weights in training"},
}


def network_plan_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a network plan file. It cannot check sums and the digest."""
    layer = {"type": "object", "properties": {key: _LAYER[key] for key in LAYER_KEYS}}
    layers = {"type": "array", "minItems": 1, "items": {**layer, "required": LAYER_KEYS}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "synth plan file of a network",
        "type": "object",
        "properties": {key: layers if key == "layers" else _TYPES[key] for key in KEYS},
        "required": KEYS,
        "additionalProperties": False,
    }
