"""`synth schema`: prints the JSON Schema of a kind of file, or of what a command prints with `--json`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synth.cli.output import json_text
from synth.cli.parser import declare

FILES = ("layer", "network", "machine", "plan", "network-plan")
OUTPUTS = (  # keys of `output_schemas.OUTPUTS`, which imports msgspec
    *("simulation", "run", "bounds", "symbolic_bound", "predictions", "prediction", "replay", "doctor"),
    *("certificate", "certified", "errata", "diff", "explanation", "imported", "checked", "calibration"),
)


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "schema",
        "print the JSON Schema of a kind of file, or of what a command prints with --json",
        "layer > layer.schema.json",
        "network > network.schema.json",
        "explanation > explanation.schema.json",
        description="Print the JSON Schema of a kind of file, or of what a command prints with --json. For "
        "editors with the YAML language server, the first line of a layer file can then be: "
        "# yaml-language-server: $schema=layer.schema.json",
    )
    kinds = (*FILES, *OUTPUTS)
    command.add_argument("file", nargs="?", choices=kinds, default="layer", help="what to describe (layer)")


def run(args: argparse.Namespace) -> int:
    """Prints the schema."""
    sys.stdout.write(json_text(schema_of(args.file)))
    return 0


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of one of `FILES` or `OUTPUTS`."""
    if kind in OUTPUTS:
        from synth.cli.setup.output_schemas import output_schema

        return output_schema(kind)
    if kind == "layer":
        from synth.layer.layer import layer_file_schema

        return layer_file_schema()
    if kind == "plan":
        from synth.planning.plan_entry import plan_file_schema

        return plan_file_schema()
    if kind == "network-plan":
        from synth.network.plan.plan_entry import network_plan_file_schema

        return network_plan_file_schema()
    from synth.network.json_schema import machine_file_schema, network_file_schema

    return network_file_schema() if kind == "network" else machine_file_schema()
