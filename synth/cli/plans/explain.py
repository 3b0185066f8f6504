"""`synth explain`: why a plan has its grid, and what costs most."""

from __future__ import annotations

import argparse
from typing import Any

from synth.cli.output import tell
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "explain",
        "say why a plan has its grid: what its words are, the bound, the next-best grids, what limits",
        "plan.json",
        "network-plan.json --json",
        description="Say why the plan of a layer has its grid: what its words are, the bound, the next-best "
        "grids, what limits. Of a network: the most expensive layers and redistributions.",
    )
    command.add_argument(
        "plan", metavar="PLAN.json", help="a layer's or network's plan file (`synth plan --json`); - is stdin"
    )
    command.add_argument("--json", action="store_true", help="print the explanation as one JSON object")
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Prints the explanation. Raises `InputError` for a file that is no plan, or that was edited."""
    from synth.analysis.explanation import explain

    tell(args, explain(args.plan), args.output)
    return 0
