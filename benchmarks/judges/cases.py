"""What the judges run, and what came of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

BASES = ("modules", "operators", "outputs", "layers")
CUTS = ("batch", "spatial", "channels", "filters", "mixed", "free")
DTYPES = ("float64", "bfloat16")
EQUAL, REFUSED, WRONG, CRASH, MISCOUNTED = "equal", "refused", "wrong", "crash", "miscounted"
VERDICTS = (EQUAL, REFUSED, MISCOUNTED, CRASH, WRONG)  # from the best to the worst
VOID = "void"  # of a case that torch refuses, too


@dataclass(frozen=True)
class Case:
    """One call of torch on ranks.

    base: "modules" and "operators" of torch's databases inside a network, "outputs" the operators called on
    what a network gives, "layers" of public tests. sample: its number in the database or grid. cut: how the
    layer before the call is divided. further: where tensors beside the first one come from. call: "pos",
    "named", "method" or "in place". after: whether a planned layer reads the result.
    """

    base: str
    name: str
    sample: int
    dtype: str
    cut: str
    further: str = "buffer"
    call: str = "pos"
    after: bool = True
    training: bool = True
    ranks: int = 4

    def __str__(self) -> str:
        """Such as "operators/addcdiv/8/float64/filters/input/method/after", which `read` takes."""
        words = [self.base, self.name, str(self.sample), self.dtype, self.cut, self.further, self.call]
        marks = (
            ("after", self.after),
            ("evaluation", not self.training),
            (f"{self.ranks} ranks", self.ranks != 4),
        )
        return "/".join([*words, *(name for name, holds in marks if holds)])

    @staticmethod
    def read(text: str) -> Case:
        """The case of such a text."""
        base, name, sample, dtype, cut, further, call, *marks = text.split("/")
        ranks = next((int(each.split()[0]) for each in marks if each.endswith(" ranks")), 4)
        kept = "after" in marks, "evaluation" not in marks, ranks
        return Case(base, name, int(sample), dtype, cut, further, call, *kept)


@dataclass(frozen=True)
class Outcome:
    """What came of a case. why: a refusal's sentence, an error, or what differs by how much.

    stage: what was done when it ended. place: the line that raised. grid: of the layer before the call.
    random: the call draws numbers, so that only shapes, words and evaluation were compared. gathered: a layer
    was computed from the whole. seconds: of the slowest rank. commit: at which it was run.
    """

    verdict: str
    why: str = ""
    stage: str = ""
    place: str = ""
    grid: str = ""
    random: bool = False
    gathered: bool = False
    seconds: float = 0.0
    commit: str = ""

    def __str__(self) -> str:
        return " | ".join(filter(None, [self.verdict, self.grid, self.stage, self.place, self.why]))


def store(path: Path, case: Case, outcome: Outcome) -> None:
    """Append an outcome to the results: one line, in one write."""
    outcome = replace(outcome, commit=commit())
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"case": asdict(case), "outcome": asdict(outcome)}) + "\n")


def stored(path: Path) -> dict[Case, Outcome]:
    """The last outcome of every case so far that is not void; {} if there are none."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {Case(**each["case"]): Outcome(**each["outcome"]) for each in lines}
    return {case: outcome for case, outcome in found.items() if outcome.verdict != VOID}


@cache
def commit() -> str:
    """The commit of this tree, with "+" if it was changed since; "" outside of a repository."""
    command = ["git", "describe", "--always", "--abbrev=8", "--dirty=+"]
    place = Path(__file__).parent
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False).stdout.strip()


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome that counts for several cases of one name."""
    return max(outcomes, key=lambda each: VERDICTS.index(each.verdict))
