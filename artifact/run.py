"""Runs the short rows of ARTIFACT.md, and looks for the expected figure in what each command prints.

python artifact/run.py [--list]
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Row(NamedTuple):
    """A claim, the commands that check it, and the text that the last of them prints."""

    claim: str
    commands: list[str]
    figure: str


def rows(section: str = "Short") -> list[Row]:
    """The rows of a section of ARTIFACT.md."""
    text = (ROOT / "ARTIFACT.md").read_text(encoding="utf-8")
    part = text.split(f"## {section}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if "|" in line
    ]
    return [
        Row(claim, re.findall("`([^`]*)`", command)[::-1], figure.strip("`"))  # "A after B" runs B first
        for claim, command, _, figure in cells[2:]
    ]


def failure(row: Row) -> str:
    """Why the commands of a row do not show its figure, or nothing."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in row.commands:
        words = [sys.executable if word == "python" else word for word in shlex.split(command)]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{command} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
    shown = " ".join(done.stdout.split())
    return "" if " ".join(row.figure.split()) in shown else f"it printed {shown[:2000]}"


def main(arguments: list[str]) -> int:
    """Runs or lists the short rows; 1 if one of them fails."""
    (ROOT / "build").mkdir(exist_ok=True)
    failed = 0
    for row in rows():
        if arguments == ["--list"]:
            print(*row.commands, sep="\n")
            continue
        start = time.monotonic()
        fault = failure(row)
        print(f"{'FAILED' if fault else 'ok':6} {time.monotonic() - start:6.1f} s  {row.claim}", flush=True)
        if fault:
            print(f"       expected {row.figure!r}, but {fault}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
