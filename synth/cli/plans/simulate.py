"""`synth simulate`: interprets the schedule of all ranks in one process."""

from __future__ import annotations

import argparse
from typing import Any

from synth.cli.arguments import add_request, plan_of
from synth.cli.output import tell
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "simulate",
        "interpret the schedule of a layer's plan, all ranks in one process",
        "plan.json",
        "conv.yaml --procs 16 --count",
    )
    add_request(command)
    command.add_argument("--count", action="store_true", help="count words and memory only, no values")
    command.add_argument("--json", action="store_true", help="print the outcome as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Interprets the plan and prints the outcome. Raises `CheckError`."""
    plan = plan_of(args)
    from synth.simulation.simulate import simulated

    tell(args, simulated(plan, values=not args.count))
    return 0
