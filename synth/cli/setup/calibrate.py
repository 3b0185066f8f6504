"""`synth calibrate`: measures this machine, or every layer of a network on it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synth.base.atomic_write import put
from synth.base.errors import UsageError
from synth.base.extras import require
from synth.base.units import whole
from synth.base.yaml_positions import Listing, Mapping, Node, Scalar, parse
from synth.cli.output import json_text
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
    command.add_argument("--json", action="store_true", help="print one JSON object, the text included")
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
    if text is None:
        return 0
    if args.output or not args.json:
        put(text, args.output)
    if args.json:
        kind = "layers" if args.network else "machine"
        sys.stdout.write(
            json_text({"schema": "synth.calibration/1", "file": args.output} | data_of(kind, text))
        )
    return 0


def data_of(kind: str, text: str) -> dict[str, Any]:
    """What a profile of layers or a machine file has, and its text."""
    found: Any
    if kind == "machine":
        found = _data(parse(text, "the machine file"))
    else:
        import csv

        rows = csv.DictReader(text.splitlines())
        found = [{key: cell if key == "layer" else float(cell) for key, cell in row.items()} for row in rows]
    return {"kind": kind, kind: found, "text": text}


def _data(node: Node | None) -> Any:
    """A part of a machine file as data; YAML 1.1 would read 7.85e12 as a text."""
    if isinstance(node, Mapping):
        return {key: _data(value) for key, (_, value) in node.entries.items()}
    if isinstance(node, Listing):
        return [_data(item) for item in node.items]
    text = node.text if isinstance(node, Scalar) else ""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def _machine_name(output: str | None) -> str:
    """The machine's name: that of the file, where it can be one."""
    from pathlib import Path

    stem = Path(output).stem if output else ""
    return stem if stem and all(c.isalnum() or c in "-_." for c in stem) else "here"
