"""`synth completion`: a script with which a shell completes commands, flags and files."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synth.base.extras import extra_needed
from synth.cli.parser import declare

SHELLS = ("bash", "zsh", "fish", "tcsh")
FILES = ("FILE", "LAYER", "NET", "PLAN.json", "A.json", "B.json", "CSV")  # arguments that name files


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "completion",
        "print the script that completes commands and flags in a shell",
        "bash > ~/.local/share/bash-completion/completions/synth",
        "zsh > ~/.zfunc/_synth",
        "fish > ~/.config/fish/completions/synth.fish",
    )
    command.add_argument("shell", choices=SHELLS, help="the shell")


@extra_needed()
def run(args: argparse.Namespace) -> int:
    """Prints the script. Raises `MissingExtraError` without shtab."""
    import shtab

    from synth.cli.main import commands, parser

    made = parser()
    for command in commands(made).values():
        for action in command._actions:
            if action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(str(shtab.complete(made, shell=args.shell)).rstrip("\n") + "\n")
    return 0
