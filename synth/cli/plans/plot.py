"""`synth plot`: single pictures of a plan, for papers."""

from __future__ import annotations

import argparse
from typing import Any

from synth.cli.parser import declare

PICTURES = ("grid", "words", "memory", "strategies", "tradeoff")


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "plot",
        "draw one picture of a layer's plan as SVG, PNG or PDF",
        "plan.json --picture strategies -o strategies.svg",
        description="Draw one picture of a layer's plan as SVG, PNG or PDF. `synth report` shows the plan of "
        "a network.",
    )
    command.add_argument(
        "plan", metavar="PLAN.json", help="a layer's plan file (`synth plan --json`); - is stdin"
    )
    command.add_argument("--picture", choices=PICTURES, default="tradeoff", help="what to draw (tradeoff)")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="a .svg, .png or .pdf file")


def run(args: argparse.Namespace) -> int:
    """Draws the picture. Raises `InputError` or `UsageError`."""
    from synth.planning.plan_file import read_plan
    from synth.reports.plot import draw, picture_format, plan_figure

    picture_format(args.output)
    draw(plan_figure(read_plan(args.plan), args.picture), args.output)
    return 0
