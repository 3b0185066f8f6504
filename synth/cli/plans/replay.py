"""`synth replay`: plays the plan of a network on a machine, event by event."""

from __future__ import annotations

import argparse
import json
from typing import Any

from synth.base.atomic_write import put, staged
from synth.cli.arguments import add_balance, json_text
from synth.cli.output import show
from synth.cli.parser import declare
from synth.planning.request import PlanRequest


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "replay",
        "plan a network and replay it on a machine, event by event",
        "net.yaml --procs 64 --machine a100 --pass training",
        "net.yaml --procs 64 --machine a100 --trace trace.json",
    )
    add = command.add_argument
    add("layer", metavar="NET", help="network file (YAML); - is stdin")
    add("--procs", type=int, metavar="P", required=True, help="processes, up to 1000000")
    add("--machine", metavar="FILE", required=True, help="machine file, or a shipped machine")
    add("--memory", metavar="SIZE", help="bytes per process, e.g. 16GiB")
    add("--objective", choices=("words", "time"), default="time", help="of the plan (default: time)")
    add_balance(command)
    add(
        "--pass",
        dest="pass_",
        choices=("forward", "training"),
        default=PlanRequest.pass_,
        help="what is replayed (default: forward)",
    )
    add(
        "--whole-weights", action="store_true", help="training for time: ranks may hold whole weights, as DDP"
    )
    add("--trace", metavar="FILE", help="write a Chrome trace (JSON) for Perfetto")
    add("--json", action="store_true", help="print one JSON object")
    command.set_defaults(solver="auto")


def run(args: argparse.Namespace) -> int:
    """Replays the plan and prints its times."""
    from synth.cli.network_arguments import network_plan_of
    from synth.prediction.replay import replay

    made = replay(network_plan_of(args))
    text = json_text(made.to_json()) if args.json else f"{made}\n"
    write = put if args.json else show
    if args.trace:
        trace = json.dumps(made.chrome_trace()) + "\n"
        with staged(args.trace, trace.encode()):  # both outputs, or none
            write(text, None)
    else:
        write(text, None)
    return 0
