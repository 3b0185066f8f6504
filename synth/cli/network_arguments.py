"""The plan of a whole network from the arguments of `synth plan NET.yaml` and `synth replay`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from synth.base.errors import UsageError
from synth.planning.request import PlanRequest, flag_words

if TYPE_CHECKING:
    from synth.network.planner.plan import NetworkPlan

# arguments of `plan` that have no meaning for a network -> their defaults
ONE_LAYER: dict[str, Any] = {
    "grid": PlanRequest.grid,
    "order": PlanRequest.order,
    "relax": False,
    "strategy": PlanRequest.strategy,
    "certify": False,
    "explain": None,
    "stop_after": "plan",
    "panels": PlanRequest.panels,
    "rows": PlanRequest.rows,
    "stationary": PlanRequest.stationary,
}


def is_network_file(path: str) -> bool:
    """Whether a file describes a network; a file that cannot be read is left to the layer reader."""
    try:
        with open(path, encoding="utf-8") as file:
            return any(line.startswith(("layers:", "network:")) for line in file)
    except (OSError, UnicodeDecodeError, ValueError):
        return False


def network_plan_of(args: argparse.Namespace) -> NetworkPlan:
    """The network plan that the arguments ask for; progress goes to stderr when that is a terminal."""
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
        training=args.pass_ == "training",
        resident_weights=args.pass_ == "forward",
        limit_bytes=parse_bytes(args.memory) if args.memory else (machine.limit_bytes if machine else None),
        machine=machine,
        balance=args.balance,
        exact_procs=getattr(args, "exact_procs", PlanRequest.exact_procs),
        input_gradient="in" in getattr(args, "gradients", PlanRequest.gradients),
    )
    report_progress = _report_progress if sys.stderr.isatty() else None
    return plan_network(load_network(args.layer), request, args.solver, report_progress)


def _refuse(args: argparse.Namespace) -> None:
    """Raises `UsageError` for arguments that are about one layer."""
    if args.objective == "paper":
        raise UsageError("objective paper is for one layer; for a network use words or time")
    if args.pass_ not in ("forward", "training"):
        raise UsageError(f"--pass {args.pass_} is for one layer; for a network use forward or training")
    gradients = set(getattr(args, "gradients", PlanRequest.gradients))
    if gradients != set(PlanRequest.gradients) and (gradients, args.pass_) != ({"ker"}, "training"):
        raise UsageError(
            f"--gradients {','.join(args.gradients)} says nothing about a network; with --pass training, ker "
            "leaves out the gradient of its input"
        )
    for name, default in ONE_LAYER.items():
        value = getattr(args, name, default)
        if value not in (default, None):
            flag = " ".join(flag_words(name, value))
            raise UsageError(f"{flag} is for one layer, not for the network {args.layer}; leave it out")


def _report_progress(text: str) -> None:
    print(f"synth: {text}", file=sys.stderr)
