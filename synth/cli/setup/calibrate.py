"""`synth calibrate`: measures this machine, or every layer of a network on it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synth.base.atomic_write import put
from synth.base.errors import UsageError
from synth.base.extras import require
from synth.base.units import whole
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "calibrate",
        "measure this machine, or every layer of a network on it",
        "--procs 4 -o here.yaml",
        "net.yaml --batch 4 -o times.csv",
    )
    command.add_argument("network", metavar="NET", nargs="?", help="network file (YAML): times per layer")
    command.add_argument(
        "--procs", type=whole, metavar="P", help="without NET: measure the machine with P ranks started here"
    )
    command.add_argument("--batch", type=int, default=1, metavar="B", help="samples per measurement (1)")
    command.add_argument("--repeat", type=int, default=7, metavar="N", help="repetitions, at least (7)")
    command.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="of repetitions until they agree, at most (20)",
    )
    command.add_argument("--timeout", type=float, default=60.0, metavar="S", help="longest wait of a rank")
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Measures the machine, or every layer of a network on it, and writes the result."""
    if args.network and args.procs is not None:
        raise UsageError(
            f"calibrate measures the layers of {args.network}, or the machine with --procs {args.procs}; "
            "leave one of them out"
        )
    if not 0 <= args.seconds < 1e9:
        raise UsageError(f"--seconds {args.seconds:g}: it must be at least 0")
    if args.repeat < 1 or args.batch < 1 or not 0 < args.timeout < 1e9:
        raise UsageError(
            f"--repeat {args.repeat}, --batch {args.batch}, --timeout {args.timeout:g}: all must be positive"
        )
    require("torch")
    text: str | None
    if args.network:
        from synth.network.file import load_network
        from synth.prediction.calibrate_profile import calibrate

        network = load_network(args.network)
        text = calibrate(
            network, args.batch, args.repeat, lambda t: None if args.quiet else print(t, file=sys.stderr)
        )
    else:
        from synth.launch.calibrate import calibrate_machine

        text = calibrate_machine(
            args.procs, _machine_name(args.output), args.repeat, args.timeout, args.seconds
        )
    if text is not None:
        put(text, args.output)
    return 0


def _machine_name(output: str | None) -> str:
    """The machine's name: that of the file, where it can be one."""
    from pathlib import Path

    stem = Path(output).stem if output else ""
    return stem if stem and all(c.isalnum() or c in "-_." for c in stem) else "here"
