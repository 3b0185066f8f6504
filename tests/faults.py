"""Programs that break in one way on one rank at one step, and who is left of a run."""

from __future__ import annotations

import os
from pathlib import Path

from cases import SMALL

from codegen.render import render
from synth.axes import PerAxis
from synth.plan import Plan
from synth.tiling import Tiling

TIMEOUT = 4.0  # seconds a rank waits for another
SLACK = 5.0  # seconds within which all ranks are gone after that
PLAN = Plan(SMALL, 4, PerAxis(b=2, k=2), Tiling("Out", PerAxis(c=4), False, "forward"))
RANK, AT, STEP = 2, "b=1 k=0", 1
STARTED = "Ker, loop step 1"
HOOK = "        settle(coming, panels)\n"


def broken(statement: str, mark: Path | None = None) -> str:
    """The program of `PLAN`; rank 2 runs a statement in step 1 and touches `mark` before."""
    text = render(PLAN)
    assert HOOK in text
    return text.replace(HOOK, HOOK + _fault(statement, mark), 1).replace(
        "import sys\n", "import os\nimport signal\nimport sys\nimport time\n", 1
    )


def _fault(statement: str, mark: Path | None) -> str:
    touched = f"time.sleep(0.7); open({str(mark)!r}, 'w').close(); " if mark else ""  # a sign is given
    return (
        f"        if step == {STEP} and os.environ['RANK'] == '{RANK}':\n            {touched}{statement}\n"
    )


def processes(word: str) -> dict[int, str]:
    """Process -> command line, of those that have a word in it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(path.parent.name) != os.getpid():
            found[int(path.parent.name)] = line
    return found
