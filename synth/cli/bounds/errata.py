"""`synth errata`: errors of the printed formulas, with counterexamples."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from synth.cli.output import json_text, show
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers, "errata", "where the paper's printed formulas err, with counterexamples", ""
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Computes and prints the list."""
    from synth.analysis.errata import errata, text

    if args.json:
        sys.stdout.write(
            json_text({"schema": "synth.errata/1", "errata": [asdict(each) for each in errata()]})
        )
    else:
        show(text())
    return 0
