"""`synth bounds`: lower bounds, closed forms, relaxation and best plan of a layer over ranges."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from synth.base.atomic_write import put
from synth.base.errors import UsageError
from synth.cli.arguments import add_balance
from synth.cli.output import json_text, wants_progress
from synth.cli.parser import declare
from synth.cli.tables import add_forms, write_table

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
        "conv.yaml --symbolic latex",
    )
    command.add_argument("layer", metavar="LAYER", help="layer file (YAML); - is stdin")
    command.add_argument("--procs", metavar="P", help="64, 1,8,61 or 1:65536 (log-spaced)")
    command.add_argument(
        "--symbolic",
        nargs="?",
        const="text",
        choices=("text", "latex", "json"),
        help="the universal bound as formulas in P and M; without --procs",
    )
    command.add_argument("--memory", metavar="SIZE", help="bytes per process: 16GiB or 64KiB:64GiB")
    command.add_argument("--points", type=int, metavar="N", help="points per range (default: doubling)")
    add_balance(command)
    command.add_argument("--exact-procs", action="store_true", help="leave no process idle")
    command.add_argument("--bounds-only", action="store_true", help="neither relaxation nor plans: instant")
    command.add_argument("--eq3", action="store_true", help="the exact integer optimum of Eq. 3, too (slow)")
    add_forms(command)
    command.add_argument("--plot", metavar="FILE", help="draw a log-log picture (.svg, .png or .pdf), too")
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Prints the symbolic bound, or runs the sweep and prints it."""
    if args.symbolic:
        put(symbolic_text(args), args.output)
        return 0
    made = study(args)
    if args.plot:
        from synth.reports.plot import draw, picture_format, sweep_figure

        picture_format(args.plot)
        draw(sweep_figure(made), args.plot)
    write_table(args, made, args.output)
    return 0


def symbolic_text(args: argparse.Namespace) -> str:
    """The bound of a layer as formulas. Raises `UsageError` if an option of the sweep is given."""
    for name in ("procs", "memory", "points", "csv", "plot", "eq3", "bounds_only", "exact_procs"):
        if getattr(args, name):
            raise UsageError(
                f"--symbolic gives formulas for all P and M; leave out --{name.replace('_', '-')}, "
                f"or leave out --symbolic for numbers"
            )
    if args.json and args.symbolic == "latex":
        raise UsageError("--symbolic latex and --json ask for two forms; choose one")
    from synth.bounds.symbolic import SymbolicBound, latex, text
    from synth.layer.layer import load_layer

    layer = load_layer(args.layer)
    bound = SymbolicBound(layer.nest)
    if args.json or args.symbolic == "json":
        return json_text(bound.to_json(layer))
    return text(layer, bound) if args.symbolic == "text" else latex(layer, bound)


def study(args: argparse.Namespace) -> Study:
    """The sweep that the arguments describe. Raises `UsageError`, `InputError` or `InfeasibleError`."""
    if args.procs is None:
        raise UsageError("synth bounds needs --procs, such as 64 or 1:4096, or --symbolic for formulas")
    if args.plot:
        from synth.reports.plot import picture_format

        picture_format(args.plot)  # before the work, which may take long
    from synth.analysis.lower_bounds import lower_bounds
    from synth.cli.output import bar

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
