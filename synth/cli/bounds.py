"""`synth bounds`: lower bounds, closed forms, relaxation and best plan of a layer over ranges."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from synth.base.atomic_write import put
from synth.cli.arguments import add_balance, json_text
from synth.cli.output import show, wants_progress
from synth.cli.parser import declare

if TYPE_CHECKING:
    from synth.analysis.sweep_table import Study

LONG = 12  # a progress bar is shown from this many points on


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "bounds",
        "lower bounds, closed forms, relaxation and best plan of a layer over ranges of P and memory",
        "conv.yaml --procs 1:4096 --memory 64KiB:1GiB",
        "conv.yaml --procs 64 --bounds-only --json",
    )
    command.add_argument("layer", metavar="LAYER", help="layer file (YAML); - is stdin")
    command.add_argument("--procs", metavar="P", required=True, help="64, 1,8,61 or 1:65536 (log-spaced)")
    command.add_argument("--memory", metavar="SIZE", help="bytes per process: 16GiB or 64KiB:64GiB")
    command.add_argument("--points", type=int, metavar="N", help="points per range (default: doubling)")
    add_balance(command)
    command.add_argument("--exact-procs", action="store_true", help="leave no process idle")
    command.add_argument("--bounds-only", action="store_true", help="neither relaxation nor plans: instant")
    command.add_argument("--eq3", action="store_true", help="the exact integer optimum of Eq. 3, too (slow)")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    command.add_argument("--plot", metavar="FILE", help="draw a log-log picture (.svg, .png or .pdf), too")
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the sweep and prints it."""
    made = study(args)
    if args.plot:
        from synth.reports.plot import draw, picture_format, sweep_figure

        picture_format(args.plot)
        draw(sweep_figure(made), args.plot)
    if args.json:
        put(json_text(made.to_json()), args.output)
    elif args.csv:
        from synth.analysis.sweep_table import to_csv

        put(to_csv(made), args.output)
    else:
        show(str(made), args.output)
    return 0


def study(args: argparse.Namespace) -> Study:
    """The sweep that the arguments describe. Raises `UsageError`, `InputError` or `InfeasibleError`."""
    if args.plot:
        from synth.reports.plot import picture_format

        picture_format(args.plot)  # before the work, which may take long
    from synth.analysis.lower_bounds import lower_bounds
    from synth.cli.progress import bar

    return lower_bounds(
        args.layer,
        args.procs,
        args.memory,
        points=args.points,
        plans=not args.bounds_only,
        relaxations=not args.bounds_only,
        eq3=args.eq3,
        balance=args.balance,
        exact_procs=args.exact_procs,
        ticks=lambda points: bar("points", points, LONG if wants_progress(args) else points + 1),
    )
