"""`synth plan NET.yaml`: a strategy per layer of a whole network; `synth replay`: its run on a machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from synth.base.errors import UsageError

if TYPE_CHECKING:
    from synth.network.planner.plan import NetworkPlan

# flags of `plan` that have no meaning for a network, and what they are where nobody names them
ONE_LAYER: dict[str, Any] = {
    "grid": None,
    "order": None,
    "relax": False,
    "strategy": None,
    "certify": False,
    "explain": None,
    "stop_after": "plan",
    "panels": None,
    "stationary": "auto",
}


def register(commands: Any, plan_parser: argparse.ArgumentParser) -> None:
    """Flags of `plan` that only networks use, and the command `replay`."""
    plan_parser.add_argument(
        "--solver",
        choices=("auto", "path", "elimination", "mip"),
        default="auto",
        help="network files: how the choice per layer is made (all exact)",
    )
    replay = commands.add_parser("replay", help="replay a network plan on a machine, event by event")
    replay.add_argument("layer", metavar="NET", help="network file (YAML)")
    replay.add_argument("--procs", type=int, metavar="P", required=True, help="processes, up to 1000000")
    replay.add_argument("--machine", metavar="FILE", required=True, help="machine file, or a shipped machine")
    replay.add_argument("--memory", metavar="SIZE", help="bytes per process, e.g. 16GiB")
    replay.add_argument("--objective", choices=("words", "time"), default="time")
    replay.add_argument("--balance", type=float, default=0.10, metavar="F", help="extra work allowed (0.10)")
    replay.add_argument("--pass", dest="pass_", choices=("forward", "training"), default="forward")
    replay.add_argument("--trace", metavar="FILE", help="write a Chrome trace (JSON) for Perfetto")
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    replay.set_defaults(run=_replay, solver="auto")


def is_network_file(path: str) -> bool:
    """Whether a file describes a network; a file that cannot be read is left to the layer reader."""
    try:
        with open(path, encoding="utf-8") as file:
            return any(line.startswith(("layers:", "network:")) for line in file)
    except (OSError, UnicodeDecodeError, ValueError):
        return False


def planned(args: argparse.Namespace) -> NetworkPlan:
    """The network plan that the flags ask for; progress goes to stderr when that is a terminal."""
    from synth.base.units import parse_bytes
    from synth.network.file import load_network
    from synth.network.planner.planner import plan_network
    from synth.network.planner.request import NetworkRequest

    _refuse(args)
    machine = None
    if args.machine:
        from synth.machine.file import load_machine

        machine = load_machine(args.machine)
    request = NetworkRequest(
        args.procs,
        args.objective,
        args.pass_ == "training",
        parse_bytes(args.memory) if args.memory else (machine.limit_bytes if machine else None),
        machine,
        args.balance,
        exact_procs=getattr(args, "exact_procs", False),
        input_gradient=getattr(args, "gradients", None) != "ker",
    )
    progress = _show_progress if sys.stderr.isatty() else None
    return plan_network(load_network(args.layer), request, args.solver, progress)


def _refuse(args: argparse.Namespace) -> None:
    """Raises `UsageError` for what is asked for one layer and says nothing about a network."""
    if args.objective == "paper":
        raise UsageError("objective paper is for one layer; for a network use words or time")
    if args.pass_ not in ("forward", "training"):
        raise UsageError(f"--pass {args.pass_} is for one layer; for a network use forward or training")
    gradients = getattr(args, "gradients", None)
    if gradients not in (None, "in,ker", "ker,in") and (gradients, args.pass_) != ("ker", "training"):
        raise UsageError(
            f"--gradients {gradients} says nothing about a network; with --pass training, ker leaves out "
            "the gradient of its input"
        )
    for name, unset in ONE_LAYER.items():
        value = getattr(args, name, unset)
        if value not in (unset, None):
            flag = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise UsageError(f"{flag} is for one layer, not for the network {args.layer}; leave it out")


def _show_progress(text: str) -> None:
    print(f"synth: {text}", file=sys.stderr)


def plan(args: argparse.Namespace) -> int:
    """`synth plan NET.yaml`."""
    made = planned(args)
    from synth.network.planner.plan_json import to_json
    from synth.network.planner.report import report

    text = json.dumps(to_json(made), indent=1) + "\n" if args.json else report(made)
    if args.output:
        from synth.base.atomic_write import write_whole

        write_whole(args.output, text)
    else:
        sys.stdout.write(text)
    return 0


def _replay(args: argparse.Namespace) -> int:
    from synth.prediction.replay import replay

    made = replay(planned(args))
    if args.trace:
        from synth.base.atomic_write import write_whole

        write_whole(args.trace, json.dumps(made.chrome_trace()) + "\n")
    sys.stdout.write(json.dumps(made.to_json(), indent=1) + "\n" if args.json else f"{made}\n")
    return 0
