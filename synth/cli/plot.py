"""`synth plot`: single pictures of a plan, for papers."""

from __future__ import annotations

import argparse
from typing import Any

PICTURES = ("grid", "words", "memory", "strategies", "tradeoff")


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = subparsers.add_parser("plot", help="draw one picture of a plan as SVG, PNG or PDF")
    command.add_argument("plan", metavar="PLAN.json", help="a plan file (`synth plan --json`)")
    command.add_argument("--picture", choices=PICTURES, default="tradeoff", help="what to draw (tradeoff)")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="a .svg, .png or .pdf file")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draws the picture. Raises `InputError` or `UsageError`."""
    from synth.planning.plan_file import read_plan
    from synth.reports.plot import draw, picture_format, plan_figure

    picture_format(args.output)
    draw(plan_figure(read_plan(args.plan), args.picture), args.output)
    return 0
