"""`synth certify`: checks a certificate of a lower bound with exact arithmetic."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = subparsers.add_parser("certify", help="check a certificate (`synth plan --certify`) exactly")
    command.add_argument("certificate", metavar="FILE", help="a certificate, JSON")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the chain that was checked. Raises `InputError` or `CheckError`."""
    from synth.bounds.certificate_check import check_file

    sys.stdout.write("\n".join(check_file(args.certificate)) + "\n")
    return 0
