"""Ranks of which each watches a few others: the one that is lost is named by all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ranks import Outcome, run_file

SCRIPT = Path(__file__).parents[2] / "support/many_ranks.py"
pytestmark = pytest.mark.ranks


def suffered(size: int, rank: int, statement: str, folder: Path, *step: str) -> Outcome:
    """How a loop on ranks that do as many do ended, in which a rank ran a statement."""
    argv = "16", str(folder / "mark"), str(rank), statement, *step
    return run_file(SCRIPT, size, folder, *argv, seconds=150)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 3 is lost, last seen at "),
        pytest.param("time.sleep(300)", "rank 3 is late, still at ", marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", "rank 3 is (lost|late)", marks=pytest.mark.slow),
    ],
)
@pytest.mark.one_in(3)
def test_all_name_the_rank_that_few_of_them_watch(statement: str, named: str, tmp_path: Path) -> None:
    """Rank 0 reads the heartbeats of ranks 1, 2, 4, 6 and 7."""
    outcome = suffered(8, 3, statement, tmp_path)
    others = [rank for rank in range(8) if rank != 3]
    assert [outcome.codes[rank] for rank in others] == [6] * 7, outcome.output
    for rank in others:
        assert re.search(rf"rank {rank}: failed, .*; {named}", outcome.output[rank]), outcome.output[rank]
        assert not re.search(r"rank [0124567] is (lost|late)", outcome.output[rank])


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_by_all(tmp_path: Path) -> None:
    outcome = suffered(8, 3, "os._exit(0)", tmp_path, "0")
    for rank in (0, 1, 2, 4, 5, 6, 7):
        assert outcome.codes[rank] == 6
        assert re.search(r"failed, .*rank 3 is lost, it never came", outcome.output[rank]), outcome.output[
            rank
        ]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_128_ranks_train_two_steps_and_end(tmp_path: Path) -> None:
    argv = "600", str(tmp_path / "mark"), "0", "pass"
    outcome = run_file(SCRIPT, 128, tmp_path, *argv, variables={"STEPS": "2", "MANY": "16"}, seconds=1200)
    assert outcome.codes == [0] * 128, [each[-500:] for each in outcome.output if each.strip()][:3]
