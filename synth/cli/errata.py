"""`synth errata`: errors of the printed formulas, with counterexamples."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = subparsers.add_parser(
        "errata", help="where the paper's printed formulas err, with counterexamples"
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Computes and prints the list."""
    from synth.analysis.errata import text

    sys.stdout.write(text())
    return 0
