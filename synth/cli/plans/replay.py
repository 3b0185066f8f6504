"""`synth replay`: plays the plan of a network on a machine, event by event."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from synth.base.atomic_write import staged
from synth.cli.arguments import add_balance, add_recompute
from synth.cli.output import tell
from synth.cli.parser import declare
from synth.planning.request import PlanRequest

if TYPE_CHECKING:
    from synth.prediction.replay import Replay


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "replay",
        "plan a network and replay it on a machine, event by event",
        "net.yaml --procs 64 --machine a100 --pass training",
        "net.yaml --procs 64 --machine a100 --trace trace.json",
        "net.yaml --procs 64 --machine a100 --report replay.html",
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
    add_recompute(command)
    add("--trace", metavar="FILE", help="write a Chrome trace (JSON) for Perfetto")
    add("--report", metavar="FILE", help="write the report of the plan (HTML) with the timeline of the step")
    add("--json", action="store_true", help="print one JSON object")
    command.set_defaults(solver="auto")


def run(args: argparse.Namespace) -> int:
    """Replays the plan and prints its times."""
    from synth.cli.network_arguments import network_plan_of
    from synth.prediction.replay import replay

    made = replay(network_plan_of(args))
    with ExitStack() as files:  # all outputs, or none
        for path, content in _files(args, made):
            files.enter_context(staged(path, content.encode()))
        tell(args, made)
    return 0


def _files(args: argparse.Namespace, made: Replay) -> Iterator[tuple[str, str]]:
    """The files that are asked for, and their texts."""
    if args.trace:
        yield args.trace, json.dumps(made.chrome_trace()) + "\n"
    if args.report:
        from synth.analysis.today_network import with_today
        from synth.reports.html.html_network import html_network

        yield args.report, html_network(with_today(made.plan), made)
