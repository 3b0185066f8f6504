"""`synth errata`: errors of the printed formulas, with counterexamples."""

from __future__ import annotations

import argparse
from typing import Any

from synth.cli.output import show
from synth.cli.parser import declare


def register(subparsers: Any) -> None:
    """Declares the command."""
    declare(subparsers, "errata", "where the paper's printed formulas err, with counterexamples", "")


def run(args: argparse.Namespace) -> int:
    """Computes and prints the list."""
    from synth.analysis.errata import text

    show(text())
    return 0
