"""What a campaign runs, and what came of it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

FORMS = ("emitted", "standalone", "synth run", "parallelize")
SIGNALS = ("KILL", "STOP", "TERM", "HUP")
INSIDE = ("exit 0", "exception")
FAULTS = (*SIGNALS, *INSIDE, "link cut", "parent killed")
COMPUTING = 2.0  # seconds in which faults hit that are counted from when all ranks compute
TORCHRUN = re.compile(  # lines of its report
    r"  (time|host|rank|exitcode|error_file|traceback) +:|\[[0-9]+\]:|[-=]+$|  +File .*torch/distributed"
)
SLACK = 5.0  # seconds after the timeout in which all must have ended


@dataclass(frozen=True)
class Case:
    """One run. rank: who is hit; of a cut link and a killed parent, 0."""

    form: str
    fault: str
    procs: int
    rank: int
    moment: float  # seconds after the start
    after: bool  # the moment counts from when all ranks compute
    forked: bool  # processes start as forks of one that has loaded torch
    timeout: float

    @property
    def load(self) -> int:
        """Processor time that it takes, in ranks that are forked."""
        return self.procs if self.forked else 2 * self.procs


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    seconds: float  # from the fault until no process was left
    named: bool  # whether the output names the culprit
    left: int  # processes that had to be killed
    files: list[str]  # under TMPDIR that are not torchrun's own
    said: str
    made: bool  # whether all ranks computed before the fault, or had called `parallelize`; forked programs
    delay: float = 0.0  # the longest that the look at the processes had to wait for a core, in seconds
    ranks: float = 0.0  # seconds from the fault until no rank was left: a launcher ends later
    codes: list[int | None] = field(default_factory=list)  # of the launchers
    refused: str = ""  # why the case could not be run here

    def late(self, case: Case) -> bool:
        """Whether the promise was broken: a rank was left. A launcher may take longer."""
        return self.ranks > case.timeout + SLACK

    def wrong(self, case: Case) -> bool:
        """Whether a person should look at it."""
        return bool(self.late(case) or self.left or self.files or not self.named)


@dataclass(frozen=True)
class Campaign:
    """Which cases are run. timeout, latest: for forked and for real starts.

    Every other moment of forked starts is counted from when all ranks compute.
    latest: the last moment that is counted from the start.
    """

    moments: int
    procs: Sequence[int]
    forms: Sequence[str]
    faults: Sequence[str]
    real_every: int  # one moment of so many has real starts
    timeout: tuple[float, float]
    latest: tuple[float, float]
    seed: int

    def cases(self) -> Iterator[Case]:
        """All cases, one moment of every cell after the other; the same for the same seed."""
        for moment in range(self.moments):
            cells = [
                (form, fault, procs, other)
                for procs in self.procs
                for form in self.forms
                for fault in self.faults
                for other in ((False, True) if fault not in ("link cut", "parent killed") else (False,))
                if (form, fault) != ("synth run", "link cut")
            ]
            random.Random(f"{self.seed} {moment}").shuffle(cells)
            for number, (form, fault, procs, other) in enumerate(cells):
                chance = random.Random(f"{self.seed} {moment} {form} {fault} {procs} {other}")
                real = (moment + number) % self.real_every == 0 if self.real_every else False
                rank = chance.randrange(1, procs) if other else 0
                after = not real and (moment + number) % 2 == 1
                at = round(chance.uniform(0.0, COMPUTING if after else self.latest[real]), 3)
                yield Case(form, fault, procs, rank, at, after, not real, self.timeout[real])


def store(path: Path, case: Case, outcome: Outcome) -> None:
    """Append an outcome to the results: one line, in one write."""
    said = [line for line in outcome.said.splitlines() if not TORCHRUN.match(line)]
    kept = asdict(outcome) | {
        "said": "\n".join(said)[:4000] if outcome.wrong(case) or outcome.refused else ""
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"case": asdict(case), "outcome": kept}) + "\n")


def stored(path: Path) -> dict[Case, Outcome]:
    """The outcomes so far; {} if there are none."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {Case(**each["case"]): Outcome(**each["outcome"]) for each in lines}
