"""Random problems against torch (see `differential`): 600 in every run, the nightly number with --slow.

SYNTH_DIFFERENTIAL sets the nightly number; a hundredth of the problems runs on real ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from differential import CORPUS, Verdict, checked, on_ranks, verdicts
from effort import tried
from seeded_problems import Problem, random_problem

from synth.base.errors import CheckError

SLICE = tried(150, 600)
NIGHTLY = int(os.environ.get("SYNTH_DIFFERENTIAL", "20000"))


def faults(found: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in found if verdict.fault]


@pytest.mark.parametrize("line", CORPUS.read_text(encoding="utf-8").splitlines())
def test_past_failures_of_the_planner(line: str) -> None:
    checked(Problem(**json.loads(line)).planned())


@pytest.mark.timeout(900)
def test_a_slice_of_the_problems() -> None:
    found = list(verdicts(1, range(SLICE), os.cpu_count() or 1))
    assert len(found) == SLICE
    assert faults(found) == []
    assert len({verdict.kind for verdict in found}) > 12  # every kind of layer, most passes


def test_problems_are_the_same_in_every_process() -> None:
    """Whatever the order of Python's sets: a number that failed once can be tried again."""
    script = (
        "from seeded_problems import random_problem\n"
        "print([random_problem(1, number) for number in range(50)])\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{[random_problem(1, number) for number in range(50)]}\n"}


def test_problems_reach_what_they_are_for() -> None:
    problems = [random_problem(1, number) for number in range(300)]
    assert {problem.pass_ for problem in problems} == {
        "forward",
        "backward-data",
        "backward-filter",
        "training",
    }
    assert {problem.layer["kind"] for problem in problems} == {"matmul", "conv1d", "conv2d", "conv3d"}
    assert any(problem.memory is not None and problem.exact for problem in problems)
    assert any(problem.layer["groups"] > 1 and max(problem.layer["dilation"]) > 1 for problem in problems)
    assert any(problem.procs > _iterations(problem) for problem in problems)


def _iterations(problem: Problem) -> int:
    work = 1
    for extent in problem.layer["extents"].values():
        work *= extent
    return work


def test_a_wrong_count_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself: a plan whose formula counts one word too few does not pass."""
    from synth.schedule.ownership import Ownership
    from synth.schedule.volume import received_by

    made = next(
        made
        for made in (random_problem(1, number).planned() for number in range(100))
        if made.words["ker"] > 0
    )
    right = Ownership.gathered
    monkeypatch.setattr(Ownership, "gathered", lambda *given: right(*given) - (given[1] == "Ker"))
    received_by.cache_clear()
    with pytest.raises(CheckError, match="are planned"):
        checked(made)
    received_by.cache_clear()


@pytest.mark.ranks
def test_a_few_problems_on_ranks(tmp_path: Path) -> None:
    found = list(on_ranks(1, 8, tmp_path))
    assert len(found) == 8
    assert faults(found) == []


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_the_nightly_problems() -> None:
    found = list(verdicts(2, range(NIGHTLY), os.cpu_count() or 1))
    assert len(found) == NIGHTLY
    assert faults(found) == []


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(3600)
def test_the_nightly_problems_on_ranks(tmp_path: Path) -> None:
    assert faults(list(on_ranks(2, NIGHTLY // 100, tmp_path))) == []
