"""Steps of whole networks: ours beside DDP, FSDP2, ZeRO-1 and parallelism by hand, in the same processes.

    python -m benchmarks.suite.models [NAME ...] [--procs 4] [--hosts 4 --link 60mbit] [--seconds 30]

A step is forward pass, backward pass and SGD with momentum, on a batch that is already in the layout of its
input; of the VAE decoder it is a forward pass. Ours is `synth.parallelize` without a plan: it measures the
machine once, here with the ranks and links of the run, and plans for time (inference: for words). Batch
normalizations of "ours", and of tensor parallelism by hand, have the statistics of the whole batch; those of
"ours, local" and of all others have those of a rank's own samples or rows, which takes no exchange. "theirs /
ours" compares with ours of the same statistics, round by round. "For words" is ours with `objective="words"`,
for which only bytes and one step are measured. DDP broadcasts no buffers; ZeRO-1 is DDP with a sharded
optimizer; FSDP2 gathers weights once per step, block by block. Spatial and tensor parallelism are written by
hand (`models/by_hand.py`) and run where they apply. Peers that are far slower than the fastest one run one
timed step after a warm-up, the others several rounds. WRN-50-4 runs one contender after the other, since all
together exceed the memory. Bytes are counted at the sockets, as in `suite.md`. gloo's reduce-scatter moves as
much as an all-reduce; with a better one FSDP2 would move two thirds. Held are parameters, gradients and
momenta (of decoders: parameters).

With `--peers "one process" "one process, compiled"` ours stands beside the limit on one host: the model on
the first rank, with a thread for each core, eager and under `torch.compile`, while the other ranks wait at a
barrier, which takes no core. Its batch normalizations compare with those of "ours, local".

Lines are written after each network, and replace those of the same network and number of ranks in the files
of an earlier run; the last column of the table says when a line was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

import synth
from benchmarks.machine import describe
from benchmarks.suite.hosts import Hosts, HostsError, add_options, asked
from benchmarks.suite.launch import ROOT, MeasuringError, run_module
from benchmarks.suite.models import rank
from benchmarks.suite.models.contenders import LIMITS, LOCAL, OURS
from benchmarks.suite.models.lines import HEADS, Line, merged, page, write
from benchmarks.suite.models.networks import MODELS
from benchmarks.suite.table import markdown
from synth.machine.measured import machine_text

PEERS = ("DDP", "ZeRO-1", "FSDP2", "spatial", "tensor", *LIMITS)


def measured(args: argparse.Namespace, hosts: Hosts) -> int:
    """All networks on all numbers of ranks, written one by one. Gives 1 if some could not be measured."""
    console, library = Console(width=170), torch.__version__.partition("+")[0]
    machine = f"{describe()}, torch {library}, gloo, one thread per rank; {hosts}."
    data, code = args.output.with_suffix(".json"), 0
    if args.anew:
        data.unlink(missing_ok=True)
    for name in args.networks or MODELS:
        for procs in args.procs:
            try:
                line = _line(args, hosts, name, procs)
            except MeasuringError as error:
                code = 1
                console.print(f"{name}, P = {procs}: {error}", style="red", markup=False)
                continue
            console.print("\n".join(markdown(HEADS, line.cells())), markup=False)
            if not args.no_write:
                lines = merged(data, [line])
                write(data, machine, lines)
                about = str(__doc__).partition("30]\n\n")[2].strip()
                args.output.write_text(page(machine, about, lines))
    return code


def _line(args: argparse.Namespace, hosts: Hosts, name: str, procs: int) -> Line:
    """One network on some ranks. The machine is measured once per run of this program.

    Raises `MeasuringError`.
    """
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "found")
        how = ["--seconds", str(args.seconds), "--rounds", *map(str, args.rounds), "--into", str(into)]
        how += ["--peers", *args.peers] if args.peers else []
        own = replace(hosts, environment=(*hosts.environment, ("XDG_CACHE_HOME", args.machines)))
        begin = time.strftime("%Y-%m-%d %H:%M")
        run_module(own, procs, "benchmarks.suite.models", name, *how)
        line = Line.of(name, begin, json.loads(into.read_text()))
    text = _machine(Path(args.machines), procs)
    if MODELS[name].inference or not text:
        return line
    place = Path(args.machines) if args.no_write else args.output.parent
    file = place / f"{args.output.stem}-machine-{procs}.yaml"
    file.write_text(text)
    return replace(line, predicted=predicted(name, procs, file))


def _machine(machines: Path, procs: int) -> str:
    """The machine file of what ranks have measured and kept in their cache folder; "" if they have not."""
    files = sorted(machines.glob(f"synth/*_float32_{procs}-ranks_*.json"))
    return machine_text(json.loads(files[0].read_text())["found"], "here") if files else ""


def predicted(name: str, procs: int, file: Path) -> dict[str, float]:
    """Seconds of ours by the time model on a machine."""
    case, found = MODELS[name], {}
    statistics: tuple[tuple[str, Literal["global", "local"]], ...] = ((OURS, "global"), (LOCAL, "local"))
    for who, norms in statistics:
        plan = synth.plan_model(
            case.make(),
            case.shape,
            procs,
            objective="time",
            machine=file,
            batch_norm=norms,
            whole_weights=True,
        )
        found[who] = plan.cost
    return found


def main() -> int:
    """Measure, print, and write the tables. Gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite.models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("networks", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--procs", type=int, nargs="+", default=(4,))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=(), help="default: all that move words")
    parser.add_argument("--seconds", type=float, default=30.0, help="of timed rounds per network, after one")
    parser.add_argument("--rounds", type=int, nargs=2, default=(5, 20), metavar=("LEAST", "MOST"))
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--anew", action="store_true", help="drop the lines of earlier runs")
    parser.add_argument(
        "-o", "--output", type=Path, help="benchmarks/results/models.md, or with --hosts -LINK"
    )
    parser.add_argument("--into", help=argparse.SUPPRESS)  # what a rank is started with
    add_options(parser)
    args = parser.parse_args()
    unknown = sorted({*args.networks} - MODELS.keys())
    if unknown:
        parser.error(f"there is no network {unknown[0]!r}; there are {', '.join(MODELS)}")
    if args.into:
        rank.run(args.networks[0], args.seconds, tuple(args.rounds), args.peers, args.into)
        return 0
    name = f"models-{args.link}.md" if args.hosts > 1 else "models.md"
    args.output = args.output or ROOT / "benchmarks/results" / name
    try:
        with asked(args) as hosts, tempfile.TemporaryDirectory() as args.machines:
            return measured(args, hosts)
    except HostsError as error:
        sys.exit(f"benchmarks.suite.models: {error}")


if __name__ == "__main__":
    sys.exit(main())
