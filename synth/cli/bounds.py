"""`synth bounds`: lower bounds, closed forms, relaxation and best plan of a layer over ranges."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from synth.base.atomic_write import put
from synth.base.errors import UsageError
from synth.base.work_balance import check_balance
from synth.cli.arguments import add_balance, json_text

if TYPE_CHECKING:
    from synth.analysis.sweep_table import Study

LONG = 12  # a progress bar is shown from this many points on


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = subparsers.add_parser(
        "bounds", help="lower bounds, closed forms, relaxation and best plan over ranges of P and memory"
    )
    command.add_argument("layer", metavar="LAYER", help="layer file (YAML)")
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
        text = json_text(made.to_json())
    elif args.csv:
        from synth.analysis.sweep_table import to_csv

        text = to_csv(made)
    else:
        text = str(made)
    put(text, args.output)
    return 0


def study(args: argparse.Namespace) -> Study:
    """The sweep that the arguments describe. Raises `UsageError`, `InputError` or `InfeasibleError`."""
    from synth.base.ranges import MOST_POINTS, parse_memory, parse_procs

    procs = parse_procs(args.procs, args.points)
    memory: list[int | None] = [None] if args.memory is None else [*parse_memory(args.memory, args.points)]
    check_balance(args.balance)
    if len(procs) * len(memory) > MOST_POINTS:
        raise UsageError(
            f"{len(procs)} processes x {len(memory)} sizes are more than {MOST_POINTS} points; "
            f"ask for fewer with --points"
        )
    if args.plot:
        from synth.reports.plot import picture_format

        picture_format(args.plot)  # before the work, which may take long
    from synth.analysis.sweep import Sweep, SweepOptions, why_nothing_fits
    from synth.analysis.sweep_table import Study
    from synth.cli.progress import bar
    from synth.layer.layer import load_layer

    layer = load_layer(args.layer)
    more = not args.bounds_only
    options = SweepOptions(more, more, args.eq3, args.balance, args.exact_procs)
    largest = memory[-1]
    if largest is not None and largest < layer.nest.word_bytes:
        raise UsageError(f"memory is {largest} bytes; it must hold at least one {layer.dtype} word")
    if largest is not None and more:
        # if nothing fits at the end of both ranges, nothing fits anywhere
        fault = why_nothing_fits(layer.nest, procs[-1], largest, options)
        if fault is not None:
            raise fault
    memory = [m for m in memory if m is None or m >= layer.nest.word_bytes]
    with bar("points", len(procs) * len(memory), LONG) as tick:
        points = Sweep(layer.nest, options).points(procs, memory, tick)
    return Study.of(layer, points)
