"""`synth report`: a plan of a layer or a network as one self-contained HTML file."""

from __future__ import annotations

import argparse
from typing import Any

from synth.base.atomic_write import put
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "report",
        "show the plan of a layer or a network as one self-contained HTML file",
        "plan.json -o plan.html",
    )
    command.add_argument(
        "plan", metavar="PLAN.json", help="a layer's or network's plan file (`synth plan --json`); - is stdin"
    )
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Renders the plan file. Raises `InputError` for a file that is no plan, or that was edited."""
    from synth.network.plan.plan_json import is_network_plan, parse_network_plan
    from synth.planning.plan_file import parse_plan, plan_text

    given = plan_text(args.plan)
    if is_network_plan(given):
        from synth.reports.html.html_network import html_network

        text = html_network(parse_network_plan(given, args.plan))
    else:
        from synth.reports.html.html_layer import html_report

        text = html_report(parse_plan(given, args.plan))
    put(text, args.output)
    return 0
