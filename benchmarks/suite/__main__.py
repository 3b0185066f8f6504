"""Ours beside DDP, FSDP2, DTensor and hand-written parallelism, on the same layers in the same run.

    python -m benchmarks.suite            eleven layers, P = 4 and 8: about 70 minutes on two cores
    python -m benchmarks.suite --quick    four layers, P = 4, training: a few minutes
    python -m benchmarks.suite --procs 4 --work training LAYER.yaml ...
    python -m benchmarks.suite --hosts 4 --link 1gbit --objective time    ranks on a network; needs root

Prints a table, and writes it with the machine's description to benchmarks/results/. A line replaces that of
the same layer, P and work in the files of an earlier run; the overview says when each was measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.machine import describe
from benchmarks.suite.contenders.kernels import write_whole
from benchmarks.suite.contenders.peers import PEERS
from benchmarks.suite.hosts import Hosts, HostsError, add_options, asked
from benchmarks.suite.launch import BenchmarkRequest, MeasuringError, lines, run_module
from benchmarks.suite.lines import LAYERS, PROCS, QUICK, ROOT, WORKS
from benchmarks.suite.results import page
from benchmarks.suite.summary import Line
from benchmarks.suite.table import as_json, merged, printed, totals
from synth.layer.layer import load_layer


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER.yaml")
    parser.add_argument("--procs", type=int, nargs="+", metavar="P")
    parser.add_argument("--work", nargs="+", choices=WORKS)
    parser.add_argument("--peers", nargs="+", choices=tuple(PEERS), default=tuple(PEERS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="four layers, P = 4, training steps")
    parser.add_argument("--seconds", type=float, help="of timed rounds per line (20; quick 12)")
    parser.add_argument(
        "--profiles", type=int, default=3, help="profiled steps of each contender, at most (3)"
    )
    parser.add_argument("--rounds", type=int, nargs=2, default=(5, 25), metavar=("LEAST", "MOST"))
    parser.add_argument(
        "--objective",
        choices=("words", "time", "both"),
        default="both",
        help="of our plans; both (default): the grid with the fewest words, the fastest schedule on it",
    )
    add_options(parser)
    parser.add_argument(
        "--machine",
        metavar="FILE",
        help="for the time model, {procs} for the number of ranks; by default measured before each layer",
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="without suffix; benchmarks/results/suite, or suite-quick"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--anew", action="store_true", help="drop the lines of earlier runs")
    parser.add_argument("--once", action="store_true", help="measure the machine once, not before each layer")
    args = parser.parse_args()
    args.layers = args.layers or [str(ROOT / name) for name in (QUICK if args.quick else LAYERS)]
    args.procs = args.procs or ((4,) if args.quick else PROCS)
    args.work = args.work or (("training",) if args.quick else WORKS)
    args.seconds = args.seconds or (12.0 if args.quick else 20.0)
    name = "suite" + ("-quick" if args.quick else "") + (f"-{args.link}" if args.hosts > 1 else "")
    args.output = args.output or ROOT / "benchmarks/results" / name
    return args


def calibrated(hosts: Hosts, procs: list[int], output: Path, layer: str, console: Console) -> str:
    """Measures the machine before a layer, with each number of ranks; returns the pattern of the files.

    The speed of a shared machine changes within half an hour.
    """
    folder = output.with_name(f"{output.name}-machines")
    folder.mkdir(parents=True, exist_ok=True)
    pattern = str(folder / f"{layer.replace(' ', '-')}-{{procs}}.yaml")
    for ranks in procs:
        file = pattern.replace("{procs}", str(ranks))
        run_module(hosts, ranks, "synth", "calibrate", "-o", file)
        console.print(Path(file).read_text(), markup=False)
    return pattern


def main() -> int:
    """Measure, print, write after every layer. Exit code 1 if some line could not be measured."""
    args, console = arguments(), Console(width=None if sys.stdout.isatty() else 150)
    try:
        with asked(args) as hosts:
            return measured(args, hosts, console)
    except (HostsError, MeasuringError) as error:
        console.print(f"benchmarks.suite: {error}", style="red", markup=False)
        return 1


def measured(args: argparse.Namespace, hosts: Hosts, console: Console) -> int:
    """Measures everything; returns the exit code."""
    given = BenchmarkRequest(
        tuple(args.work),
        tuple(args.peers),
        args.seconds,
        tuple(args.rounds),
        args.profiles,
        machine=args.machine,
        objective=args.objective,
        hosts=hosts,
    )
    machine = f"{describe()}, torch {torch.__version__.partition('+')[0]}; {hosts}"
    found, failed = list[Line](), list[str]()
    data = args.output.with_name(args.output.name + ".json")
    if args.anew:
        data.unlink(missing_ok=True)
    for file in args.layers:
        layer = load_layer(file)
        if not args.machine and not (args.once and given.machine):
            pattern = calibrated(hosts, args.procs, args.output, layer.name, console)
            given = replace(given, machine=pattern)
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder, "whole")
            write_whole(layer, whole)
            for procs in args.procs:
                try:
                    new = lines(layer, whole, procs, given, Path(folder))
                except MeasuringError as error:
                    failed.append(f"{layer.name}, P = {procs}: {error}")
                    console.print(failed[-1], style="red", markup=False)
                    continue
                found += new
                printed(new, console)
        if not args.no_write:
            files = Path(args.machine).name if args.machine else f"{args.output.name}-machines/*.yaml"
            shown = replace(given, machine=files)
            every = merged(data, found)
            args.output.with_name(args.output.name + ".md").write_text(page(every, machine, shown, failed))
            data.write_text(as_json(every, machine))
    console.print("\n".join(totals(found)), markup=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
