"""`synth schema`: prints the JSON Schema of the layer file."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synth.cli.arguments import json_text


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = subparsers.add_parser("schema", help="print the JSON Schema of the layer file")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the schema."""
    from synth.layer.layer import layer_file_schema

    sys.stdout.write(json_text(layer_file_schema()))
    return 0
