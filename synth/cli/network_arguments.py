"""The plan of a whole network from the arguments of `synth plan NET.yaml` and `synth replay`."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.cli.arguments import request_of
from synth.cli.output import detail, wants_progress
from synth.network.layer_or_network import network_request

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan
    from synth.network.request import NetworkRequest

# arguments of `plan` beside those of `PlanRequest` that have no meaning for a network -> their defaults
FOR_ONE_LAYER: dict[str, Any] = {
    "relax": False,
    "constants": None,
    "explain": None,
    "stop_after": "plan",
}


def network_plan_of(args: argparse.Namespace) -> NetworkPlan:
    """The network plan that the arguments ask for; progress goes to stderr when that is a terminal."""
    from synth.network.file import load_network
    from synth.network.planner.planner import plan_network

    request = network_request_of(args)
    report_progress = _report_progress if wants_progress(args) else None
    plan = plan_network(load_network(args.layer), request, args.solver, report_progress)
    detail(args, f"planned in {time.process_time():.2f} s of processor time since the start")
    return plan


def network_request_of(args: argparse.Namespace) -> NetworkRequest:
    """What the arguments ask for. Raises `UsageError` for those of one layer."""
    for name, default in FOR_ONE_LAYER.items():
        value = getattr(args, name, default)
        if value not in (default, None) and (name, value) != ("explain", "text"):
            raise UsageError(_of_one_layer(args, name, value))
    request = network_request(request_of(args), getattr(args, "whole_weights", False), args.recompute)
    explain = getattr(args, "explain", None)
    if explain and not request.most_recompute:  # else it says why margins pay
        raise UsageError(_of_one_layer(args, "explain", explain))
    return request


def _of_one_layer(args: argparse.Namespace, name: str, value: Any) -> str:
    return f"{option(name, value)} is for one layer, not for the network {args.layer}; leave it out"


def _report_progress(text: str) -> None:
    print(f"synth: {text}", file=sys.stderr)
