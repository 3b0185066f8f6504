"""`synth report`: a plan as one self-contained HTML file."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add(commands: Any) -> None:
    """Declares the command."""
    flags = commands.add_parser("report", help="show a plan as one self-contained HTML file")
    flags.add_argument("plan", metavar="PLAN.json", help="a plan file (`synth plan --json`)")
    flags.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")
    flags.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Renders the file. Raises `InputError` where the plan is no plan, or was edited."""
    from synth.html_report import html_report
    from synth.plan_file import read_plan

    text = html_report(read_plan(args.plan))
    if args.output:
        from synth.output import write_whole

        write_whole(args.output, text)
    else:
        sys.stdout.write(text)
    return 0
