"""A training job whose ranks do not all join: the others end in time and name the one that does not."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from fair_clock import FairClock

import synth
from synth.launch.launcher import Ended, started

SCRIPT = Path(__file__).parents[2] / "support/start_faults.py"
TIMEOUT, SLACK = 10.0, 5.0
LIMIT = 280  # seconds that a job may take on a machine that other work keeps busy
SLOW = pytest.mark.slow


def joined(statement: str, folder: Path, rank: int = 1, *flags: str) -> Ended:
    """How a job of three ranks ended in which one runs a statement before it joins."""
    given = [str(TIMEOUT), str(folder / "mark"), str(rank), statement, *flags]
    return started([str(SCRIPT)], 3, given, LIMIT)


def slow(function: str, seconds: float) -> str:
    """A statement after which calls of a function of torch take so much longer."""
    return f"own = {function}; {function} = lambda *given: (time.sleep({seconds}), own(*given))[1]"


@pytest.mark.ranks
@pytest.mark.slow
def test_ranks_join_twice_and_keep_their_signals(tmp_path: Path) -> None:
    outcome = joined("time.sleep(3)", tmp_path)  # longer than others wait before they look at each other
    assert outcome.code == 0, outcome.output
    assert outcome.output.count("joined") == 6


@pytest.mark.ranks
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_a_rank_that_leaves_the_first_group_late_meets_the_others_again(rank: int, tmp_path: Path) -> None:
    """The others come back while rank 0 still keeps the store of the first group."""
    outcome = joined(slow("dist.destroy_process_group", 2.0), tmp_path, rank)
    assert outcome.code == 0, outcome.output
    assert outcome.output.count("joined") == 6


@pytest.mark.ranks
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.slow
def test_ranks_that_leave_at_once_wait_for_one_that_still_reads_the_store(rank: int, tmp_path: Path) -> None:
    outcome = joined(slow("dist.PrefixStore.wait", 0.7), tmp_path, rank, "at once")
    assert outcome.code == 0, outcome.output
    assert outcome.output.count("joined") == 6


@pytest.mark.ranks
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=SLOW)])
@pytest.mark.parametrize(
    ("statement", "fate"),
    [
        ("os._exit(0)", "ended"),
        pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", "was stopped", marks=SLOW),
    ],
)
@pytest.mark.one_in(2)
@pytest.mark.slow
def test_a_rank_that_does_not_join_is_named(statement: str, fate: str, rank: int, tmp_path: Path) -> None:
    clock = FairClock()
    outcome = joined(statement, tmp_path, rank)
    taken = time.time() - (tmp_path / "mark").stat().st_mtime
    print(f"{statement}: over after {taken:.1f} s\n{outcome.output}")
    assert [code for i, code in enumerate(outcome.codes) if i != rank] == [6, 6]
    assert re.search(
        rf"rank \d: failed, last started the meeting of the ranks: .*rank {rank} ", outcome.output
    )
    assert f"rank {rank} {fate} before the ranks met" in outcome.output
    assert not re.search(rf"rank [^{rank}] (is lost|has ended)", outcome.output)
    assert clock.seconds(taken) < TIMEOUT + SLACK


def test_one_process_needs_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM), sys.excepthook
    for _ in range(2):
        synth.init_process_group("gloo")
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        with pytest.raises(RuntimeError, match="there is a default process group"):
            synth.init_process_group("gloo")
        dist.destroy_process_group()
    assert signal.getsignal(signal.SIGTERM) == before[0]
    monkeypatch.setattr(sys, "excepthook", before[1])  # torch's own prints the rank


@pytest.mark.parametrize("option", ["rank", "world_size", "store", "init_method"])
def test_what_the_launcher_says_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}: the launcher says it"):
        synth.init_process_group("gloo", **{option: None})
    assert not dist.is_initialized()
