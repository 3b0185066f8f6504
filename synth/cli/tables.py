"""Results that are tables: as text, as JSON, or as comma-separated values."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any, Protocol

from synth.base.atomic_write import put, staged
from synth.cli.output import tell


class Table(Protocol):
    """What a command prints in each of the forms."""

    def to_csv(self) -> str:
        """Comma-separated values."""

    def to_json(self) -> dict[str, Any]:
        """JSON data."""


def add_forms(command: argparse.ArgumentParser) -> None:
    """Declares `--json` and `--csv`, of which one may be given."""
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument(
        "--csv",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write comma-separated values to FILE, too; without FILE, print them instead",
    )


def write_table(args: argparse.Namespace, made: Table, output: str | None = None) -> None:
    """Writes a result in the form that was asked for to a file, or to stdout."""
    if args.csv == "-":
        put(made.to_csv(), output)
        return
    with staged(args.csv, made.to_csv().encode()) if args.csv else nullcontext():
        tell(args, made, output)
