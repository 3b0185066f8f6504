"""`synth doctor`: lists which parts of the environment are installed."""

from __future__ import annotations

import argparse
from typing import Any

from synth.cli.output import tell
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(subparsers, "doctor", "list which parts of the environment are installed", "", "--json")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints what was found; the exit code is 1 where something is missing."""
    from synth.launch.doctor import examine

    found = examine()
    tell(args, found)
    return 0 if found.well else 1
