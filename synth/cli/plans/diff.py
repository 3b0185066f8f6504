"""`synth diff`: two plans side by side."""

from __future__ import annotations

import argparse
from typing import Any

from synth.cli.output import tell
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "diff",
        "compare two plans of a layer or a network: decisions, words, memory, seconds",
        "a.json b.json",
        "a.json b.json --json -o diff.json",
        description="Compare two plans of a layer or a network: the decisions that differ, words, memory, "
        "seconds. The exit code is 0 whether they differ or not.",
    )
    command.add_argument("one", metavar="A.json", help="a plan file (`synth plan --json`); - is stdin")
    command.add_argument("other", metavar="B.json", help="a plan file of the same kind")
    command.add_argument("--json", action="store_true", help="print the comparison as one JSON object")
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Prints the comparison. Raises `InputError` for a file that is no plan, `UsageError` for two kinds."""
    from synth.analysis.plan_diff import diff

    tell(args, diff(args.one, args.other), args.output)
    return 0
