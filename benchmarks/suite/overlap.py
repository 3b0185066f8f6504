"""When panels pay: the same plan with 1, 2, 4, ... panels; the next panel travels meanwhile.

    python -m benchmarks.suite.overlap [--procs 2 4] [-o benchmarks/results/overlap.md]

Forward passes with Out stationary on a grid of two dimensions: In and Ker come in panels along c. One panel
is all at once: nothing can be computed before everything is there. The words are the same for every number of
panels; more of them hide more of their way and need less memory, but pay latencies and thin local kernels.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.machine import describe
from benchmarks.suite.contenders.kernels import operations, write_whole
from benchmarks.suite.hosts import Hosts, HostsError, add_options, asked
from benchmarks.suite.launch import ROOT, MeasuringError, measure
from benchmarks.suite.rank import Job
from benchmarks.suite.summary import Line, summarised
from benchmarks.suite.table import markdown
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer, load_layer
from synth.planning.plan import Plan
from synth.schedule.pass_plan import ONES, PassPlan

LAYERS = (
    "benchmarks/layers/matmul_square.yaml",
    "examples/vgg16/conv4_2.yaml",
    "examples/wrn50_4/conv5_x_3x3.yaml",
)
GRIDS = {2: PerAxis(k=2), 4: PerAxis(b=2, k=2), 8: PerAxis(b=2, k=4)}
PANELS = (1, 2, 4, 8, 16)
HEADS = ["layer", "grid", "panels", "s", "quartiles", "/ one panel", "MB received", "MiB held"]
HEADS += ["kernel", "copies", "waiting", "rest"]
ABOUT = """\
Forward passes with Out stationary. In and Ker stream in panels along c; the next panel travels while one is
used. All numbers of panels run in the same processes, in alternating order; medians. {cores}
`suite.md` describes how a step is timed and profiled."""
ONE_HOST = """The threads that move words
need a core as well. So if there are as many ranks as cores, or more, overlap can hide little."""
NETWORK = """Between hosts, words
wait for the links and take no core."""


def plans(layer: Layer, procs: int) -> dict[str, Plan]:
    """Label -> plan, for every number of panels."""
    grid = GRIDS[procs]
    made = {}
    for panels in PANELS:
        if panels <= layer.nest.extents.c:
            pass_plan = PassPlan("Out", ONES.with_("c", panels))
            made[f"{panels} panels" if panels > 1 else "1 panel"] = Plan(layer, procs, grid, pass_plan)
    return made


def study(layer: Layer, procs: int, made: dict[str, Plan], seconds: float, whole: Path, hosts: Hosts) -> Line:
    """All numbers of panels in the same processes."""
    job = Job(layer, str(whole), {"forward": made}, [], seconds, (5, 25), 3)
    ranks = measure(job, procs, whole.parent, hosts)["forward"]
    first = next(iter(made.values()))
    return summarised(first, operations(layer), "given grid", None, ranks)


def rows(line: Line, made: dict[str, Plan]) -> list[list[str]]:
    """One row per number of panels."""
    table_rows = []
    for row in line.rows:
        table_rows.append(
            [
                line.layer,
                line.grid,
                row.name.partition(" ")[0],
                f"{row.seconds.median:.3f}",
                f"{row.seconds.low:.3f} - {row.seconds.high:.3f}",
                f"{row.ratio.median:.2f}",
                f"{row.received / 1e6:.2f}",
                f"{made[row.name].used_bytes / 2**20:.1f}",
                *(f"{share:.0%}" for share in row.profile.values()),
            ]
        )
    return table_rows


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER.yaml")
    parser.add_argument("--procs", type=int, nargs="+", choices=tuple(GRIDS), default=(2, 4))
    parser.add_argument("--seconds", type=float, default=15.0, help="of timed rounds per layer and grid")
    parser.add_argument(
        "-o", "--output", type=Path, help="benchmarks/results/overlap.md, or with --hosts -LINK"
    )
    add_options(parser)
    args = parser.parse_args()
    name = f"overlap-{args.link}.md" if args.hosts > 1 else "overlap.md"
    args.output = args.output or ROOT / "benchmarks/results" / name
    try:
        with asked(args) as hosts:
            measured(args, hosts)
    except (HostsError, MeasuringError) as error:
        sys.exit(f"benchmarks.suite.overlap: {error}")


def measured(args: argparse.Namespace, hosts: Hosts) -> None:
    """All layers on all grids. Raises `MeasuringError`."""
    console, table_rows = Console(width=150), list[list[str]]()
    for file in args.layers or [str(ROOT / name) for name in LAYERS]:
        layer = load_layer(file)
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder, "whole")
            write_whole(layer, whole)
            for procs in args.procs:
                made = plans(layer, procs)
                found = rows(study(layer, procs, made, args.seconds, whole, hosts), made)
                console.print("\n".join(markdown(HEADS, found)), markup=False)
                table_rows += found
    library = torch.__version__.partition("+")[0]
    machine = f"{describe()}, torch {library}, gloo, one thread per rank; {hosts}."
    text = ["# Panels that travel while the one before is used", "", machine]
    text += [ABOUT.format(cores=NETWORK if hosts.link else ONE_HOST), ""]
    text += markdown(HEADS, table_rows)
    args.output.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
