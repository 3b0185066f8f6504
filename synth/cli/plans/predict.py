"""`synth predict`: time and memory of a network under a strategy on a machine."""

from __future__ import annotations

import argparse
from typing import Any

from synth.base.units import whole
from synth.cli.parser import declare
from synth.cli.tables import add_forms, write_table


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "predict",
        "time and memory of a network under a strategy on a machine",
        "net.yaml --procs 64 --machine a100",
        "net.yaml --procs 64 --machine a100 --strategy spatial",
        "net.yaml --procs 4 --machine h200 --pass forward",
    )
    command.add_argument("network", metavar="NET", help="network file (YAML); - is stdin")
    command.add_argument("--procs", type=whole, metavar="P", required=True, help="processes")
    command.add_argument(
        "--machine", metavar="FILE", required=True, help="machine file, or a shipped machine"
    )
    command.add_argument(
        "--strategy", metavar="NAME", help="one strategy, layer by layer (default: compare all)"
    )
    command.add_argument(
        "--pass",
        dest="pass_",
        choices=("training", "forward"),
        default="training",
        help="training step (default), or forward pass of inference with resident weights",
    )
    command.add_argument("--profile", metavar="CSV", help="measured times per layer: layer,forward_s,...")
    command.add_argument(
        "--batch-norm",
        choices=("local", "global"),
        default="local",
        help="statistics of batch normalizations in training: of each process, as DDP (local, the default), "
        "or of the whole batch",
    )
    command.add_argument("--table3", action="store_true", help="the formulas of Kahira et al., HPDC'21")
    command.add_argument("--batch", type=int, metavar="B", help="samples of one step (default: the file's N)")
    command.add_argument("--groups", type=int, metavar="P1", help="--table3: data groups of a hybrid")
    command.add_argument(
        "--segments", type=int, default=8, metavar="S", help="--table3: segments of a pipeline (default 8)"
    )
    command.add_argument(
        "--flows", type=float, metavar="F", help="--table3: groups that share a link (default: derived)"
    )
    command.add_argument(
        "--reuse", type=float, default=1.0, metavar="G", help="--table3: memory reuse, 0 to 1"
    )
    add_forms(command)


def run(args: argparse.Namespace) -> int:
    """Predicts one strategy, or compares all of them, and prints the result."""
    from synth.prediction.public import predict

    made = predict(
        args.network,
        args.procs,
        args.machine,
        pass_=args.pass_,
        strategy=args.strategy,
        profile=args.profile,
        batch_norm=args.batch_norm,
        table3=args.table3,
        batch=args.batch,
        groups=args.groups,
        segments=args.segments,
        flows=args.flows,
        reuse=args.reuse,
    )
    write_table(args, made)
    return 0
