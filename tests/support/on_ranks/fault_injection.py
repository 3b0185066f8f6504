"""Emitted programs in which one rank runs a given statement, before the schedule or at one of its steps."""

from __future__ import annotations

from pathlib import Path

from cases import SMALL

from synth.codegen.render import render
from synth.layer.axes import PerAxis
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan

TIMEOUT = 4.0  # seconds a rank waits for another
SLACK = 5.0  # seconds within which all ranks are gone after that
PLAN = Plan(SMALL, 4, PerAxis(b=2, k=2), PassPlan("Out", PerAxis(c=4), False, "forward"))
RANK, AT, STEP = 2, "b=1 k=0", 1
STARTED = "Ker, loop step 1"
HOOK = "        wait_gathers(pending, panels)\n"  # in step 1 of the loop
BEFORE = "    job = partial(run, in_own, ker_own, at, groups)\n"  # the rank has its data, nothing moved


def broken(statement: str, mark: Path | None = None, hook: str = HOOK) -> str:
    """The program of `PLAN`; rank 2 runs a statement at a hook, and touches `mark` before."""
    text = render(PLAN)
    assert hook in text
    here = _fault(statement, mark, hook == HOOK)
    text = text.replace(hook, hook + here if hook == HOOK else here + hook, 1)
    return text.replace("import sys\n", "import os\nimport signal\nimport sys\nimport time\n", 1)


def _fault(statement: str, mark: Path | None, looped: bool) -> str:
    touched = f"time.sleep(0.7); open({str(mark)!r}, 'w').close(); " if mark else ""  # a sign is given
    indent, when = ("        ", f"step == {STEP} and ") if looped else ("    ", "")
    return f"{indent}if {when}os.environ['RANK'] == '{RANK}':\n{indent}    {touched}{statement}\n"
