"""The JSON Schema of plan files of layers: what is read; all other keys are derived and compared."""

from __future__ import annotations

from typing import Any

import msgspec

from synth.planning.plan_file import PlanEntry
from synth.planning.plan_json import SCHEMA

_AXES = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}


def plan_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a plan file. It cannot check relations between numbers."""
    made = msgspec.json.schema(PlanEntry)
    entry = made["$defs"].pop("PlanEntry")
    words = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "synth plan file of a layer",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "id": {"type": "string", "description": "twelve hexadecimal digits that name the decisions"},
            "name": {"type": "string", "description": "of the layer"},
            "problem": {"type": "object", "description": "loop extents, stride, padding, dilation, dtype"},
            **entry["properties"],
            "used_procs": {"type": "integer", "minimum": 1},
            "work": {**_AXES, "description": "largest block of work, per axis"},
            "tile": {**_AXES, "description": "largest tile, per axis"},
            "words": {**words, "description": "the most words that any process receives, by tensor"},
            "bounds": {"type": "object", "description": "lower bounds in words, and words / bound"},
        },
        "required": ["schema", "name", "problem", *entry["required"]],
        "$defs": made["$defs"],
    }
