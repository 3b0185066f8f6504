"""`synth predict`: time and memory of a network under a strategy on a machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synth.base.units import whole
from synth.cli.arguments import json_text
from synth.cli.output import show
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "predict",
        "time and memory of a network under a strategy on a machine",
        "net.yaml --procs 64 --machine a100",
        "net.yaml --procs 64 --machine a100 --strategy spatial",
    )
    command.add_argument("network", metavar="NET", help="network file (YAML); - is stdin")
    command.add_argument("--procs", type=whole, metavar="P", required=True, help="processes")
    command.add_argument(
        "--machine", metavar="FILE", required=True, help="machine file, or a shipped machine"
    )
    command.add_argument(
        "--strategy", metavar="NAME", help="one strategy, layer by layer (default: compare all)"
    )
    command.add_argument("--profile", metavar="CSV", help="measured times per layer: layer,forward_s,...")
    command.add_argument(
        "--batch-norm", choices=("local", "global"), default="local", help="statistics (local, as in DDP)"
    )
    command.add_argument("--table3", action="store_true", help="the formulas of Kahira et al., HPDC'21")
    command.add_argument("--batch", type=int, metavar="B", help="samples of one step (default: the file's N)")
    command.add_argument("--groups", type=int, metavar="P1", help="--table3: data groups of a hybrid")
    command.add_argument("--segments", type=int, default=8, metavar="S", help="--table3: of a pipeline (8)")
    command.add_argument(
        "--flows", type=float, metavar="F", help="--table3: groups that share a link (default: derived)"
    )
    command.add_argument(
        "--reuse", type=float, default=1.0, metavar="G", help="--table3: memory reuse, 0 to 1"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predicts one strategy, or compares all of them, and prints the result."""
    from synth.machine.file import load_machine
    from synth.network.file import load_network
    from synth.prediction.predict import compare, predict
    from synth.prediction.prediction import PredictionRequest
    from synth.prediction.profile import ComputeTimes, NominalRate, load_profile

    network, machine = load_network(args.network), load_machine(args.machine)
    times: ComputeTimes = load_profile(args.profile, network) if args.profile else NominalRate(machine)
    request = PredictionRequest(
        network,
        machine,
        times,
        args.procs,
        args.batch or network.input[0],
        groups=args.groups,
        segments=args.segments,
        flows=args.flows,
        reuse=args.reuse,
        table3=args.table3,
        batch_norm=args.batch_norm,
    )
    made = predict(request, args.strategy) if args.strategy else compare(request)
    if args.json:
        sys.stdout.write(json_text(made.to_json()))
    else:
        show(f"{made}\n")
    return 0
