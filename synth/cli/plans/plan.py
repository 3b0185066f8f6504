"""`synth plan`: derives the plan of a layer, or of every layer of a network, and prints it."""

from __future__ import annotations

import argparse
from typing import Any

from synth.base.atomic_write import put
from synth.base.errors import UsageError
from synth.cli.arguments import add_recompute, add_request, plan_of
from synth.cli.output import json_text, show
from synth.cli.parser import declare
from synth.planning.request import STAGES


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "plan",
        "derive the plan of a layer or a network: grid, distribution and schedule; print the report",
        "conv.yaml --procs 64 --memory 16GiB",
        "conv.yaml --procs 64 --json -o plan.json",
        "net.yaml --procs 16 --pass training",
        "--from plan.json",
        description="Derive the plan of a layer, or of every layer of a network with the redistributions "
        "between them, and print the report.",
    )
    add_request(command, edited=True)
    command.add_argument(
        "--relax", action="store_true", help="also solve the relaxation to real-valued tiles"
    )
    command.add_argument(
        "--stop-after",
        choices=STAGES,
        default="plan",
        help="end the derivation after this stage and print its result",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    form.add_argument("--certify", action="store_true", help="print a certificate of the lower bound")
    command.add_argument(
        "--constants",
        choices=("best", "simple"),
        help="with --certify: the least constants of residue classes that can be certified (default), or "
        "their simple bounds √min(N, R), which are larger and need no proof",
    )
    form.add_argument(
        "--explain",
        nargs="?",
        const="text",
        choices=("text", "latex"),
        help="print the derivation, with its formulas",
    )
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")
    command.add_argument(
        "--solver",
        choices=("auto", "path", "elimination", "mip"),
        default="auto",
        help="network files: the method that chooses the grids of layers; all are exact",
    )
    command.add_argument(
        "--whole-weights",
        action="store_true",
        help="network files, training for time: ranks may hold whole slices of weights, as with DDP",
    )
    add_recompute(command)


def run(args: argparse.Namespace) -> int:
    """Writes the plan in the chosen form: report, stage, JSON, certificate or derivation."""
    named = args.layer if args.layer and not args.from_ else ""
    if named == "-" or named.endswith((".yaml", ".yml")):
        from synth.network.layer_or_network import is_network_file

        if is_network_file(args.layer):
            return _run_network(args)
    if args.whole_weights:
        raise UsageError(f"--whole-weights is for a network, not for {_one_layer(args)}; leave it out")
    if args.recompute:
        raise UsageError(f"--recompute is for a network, not for {_one_layer(args)}; leave it out")
    if args.constants and not args.certify:
        raise UsageError(f"--constants {args.constants} is about a certificate; add --certify")
    plan = plan_of(args)
    if args.certify:
        from synth.analysis.certificate import plan_certificate

        put(json_text(plan_certificate(plan, simple=args.constants == "simple")), args.output)
        return 0
    if args.explain:
        from synth.reports.derivation import explain

        show(explain(plan, args.explain), args.output)
        return 0
    relaxed = None
    if args.relax:
        from synth.bounds.geometric_program import relax_received

        relaxed = relax_received(plan.nest, plan.used_procs, plan.limit_words).cost
    if args.json:
        from synth.planning.plan_json import to_json

        put(json_text(to_json(plan, relaxed)), args.output)
        return 0
    from synth.reports.text import stage_text

    text = stage_text(plan, args.stop_after).rstrip("\n") + "\n"
    if relaxed is not None:
        text += f"\nrelaxation (geometric program): {relaxed:.1f} received words\n"
    show(text, args.output)
    return 0


def _one_layer(args: argparse.Namespace) -> str:
    return f"the plan {args.from_} of a layer" if args.from_ else f"the layer {args.layer}"


def _run_network(args: argparse.Namespace) -> int:
    from synth.cli.network_arguments import network_plan_of, network_request_of

    if args.certify:
        from synth.network.file import load_network
        from synth.network.planner.network_certificates import certificate

        put(json_text(certificate(load_network(args.layer), network_request_of(args))), args.output)
        return 0
    plan = network_plan_of(args)
    if args.json:
        from synth.analysis.today_network import with_today

        put(json_text(with_today(plan)), args.output)
    elif args.explain:
        from synth.network.plan.report import explain_margins

        show(explain_margins(plan), args.output)
    else:
        from synth.analysis.today_network import today_text
        from synth.network.plan.report import report

        show("\n".join(filter(None, [report(plan), today_text(plan)])), args.output)
    return 0
