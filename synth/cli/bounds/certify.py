"""`synth certify`: checks a certificate of a lower bound with exact arithmetic."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synth.base.errors import UsageError
from synth.base.file_kinds import kind_of, refuse_other_file
from synth.cli.arguments import text_or_nothing
from synth.cli.output import json_text, show
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "certify",
        "check a certificate of a lower bound (`synth plan --certify`) in exact arithmetic",
        "bound.json",
        "bound.json --plan plan.json",
        "bound.json --proved",
    )
    command.add_argument("certificate", metavar="FILE", help="a certificate (JSON); - is stdin")
    command.add_argument("--plan", metavar="FILE", help="a plan file that the certificate must be about")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "--proved",
        action="store_true",
        help="check it again with the checker that is proved in Coq, which must be installed",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the chain that was checked. Raises `InputError` or `CheckError`."""
    text = text_or_nothing(args.certificate)
    of_network = kind_of(text) in ("network-certificate", "recomputation-certificate")
    if not of_network:
        refuse_other_file(text, args.certificate, "certificate")
    lines = _of_network(args) if of_network else _of_layer(args)
    if args.json:
        sys.stdout.write(
            json_text({"schema": "synth.certified/1", "file": args.certificate, "checked": lines})
        )
    else:
        show("\n".join(lines) + "\n")
    return 0


def _of_layer(args: argparse.Namespace) -> list[str]:
    """The lines of a certificate of a layer."""
    from synth.bounds.certificate_check import check_file, read_certificate

    lines = check_file(args.certificate)
    if args.plan:
        from synth.analysis.certificate import check_plan
        from synth.planning.plan_file import read_plan

        lines.append(check_plan(read_certificate(args.certificate), read_plan(args.plan)))
    if args.proved:
        from synth.bounds.proved_check import prove

        lines += prove(read_certificate(args.certificate), args.certificate)
    return lines


def _of_network(args: argparse.Namespace) -> list[str]:
    """The lines of a certificate of a network."""
    from synth.network.plan.plan_file import NetworkPlanFile
    from synth.network.planner.network_certificates import check_file

    if args.proved:
        raise UsageError("--proved is about certificates of layers, not of a network; leave it out")
    plan = None
    if args.plan:
        from synth import read_plan

        given = read_plan(args.plan)
        if not isinstance(given, NetworkPlanFile):
            raise UsageError(
                f"--plan {args.plan} is the plan of a layer, but the certificate is of a network; name the"
                " plan of the network"
            )
        plan = given
    return check_file(args.certificate, plan)
