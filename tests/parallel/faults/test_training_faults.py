"""Faults of a rank in a training loop: all ranks end in time, and the messages name the faulty rank."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from fair_clock import FairClock
from ranks import Outcome, run_file

from synth.launch.launcher import Ended, started

SCRIPT = Path(__file__).parents[2] / "support/training_faults.py"
TIMEOUT, SLACK = 8.0, 5.0
LIMIT = 280  # seconds that a job may take on a machine that other work keeps busy
SLOW = pytest.mark.slow
LAST = r"last seen at \d: \w+, [\w-]+ \w+ step 0, at training_faults\.py:\d+"

pytestmark = pytest.mark.ranks


def suffered(rank: int, statement: str, folder: Path, *step: str) -> tuple[Ended, float]:
    """How a loop ended in which a rank ran a statement, and how many seconds later."""
    mark, clock = folder / "mark", FairClock()
    for _ in range(3):  # on a busy machine the ranks may not meet in time, and the fault never comes
        outcome = started([str(SCRIPT)], 4, [str(TIMEOUT), str(mark), str(rank), statement, *step], LIMIT)
        if mark.exists():
            break
    taken = time.time() - mark.stat().st_mtime
    print(f"rank {rank}: {statement}: over after {taken:.1f} s\n{outcome.output}")
    return outcome, clock.seconds(taken)


@pytest.mark.parametrize("rank", [2, pytest.param(0, marks=SLOW)])
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", f"is lost, {LAST}"),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", f"is lost, {LAST}", marks=SLOW),
        pytest.param("sys.exit(0)", "has left after ", marks=SLOW),
    ],
)
def test_a_rank_that_ends_is_named(rank: int, statement: str, named: str, tmp_path: Path) -> None:
    outcome, taken = suffered(rank, statement, tmp_path)
    assert taken < SLACK + 1
    assert [code for i, code in enumerate(outcome.codes) if i != rank] == [6] * 3
    assert re.search(rf"rank \d: failed, last started .*; rank {rank} {named}", outcome.output)


@pytest.mark.slow
def test_the_last_line_of_a_rank_within_a_library_is_that_of_the_loop(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "loaders.py"
    file.parent.mkdir()
    file.write_text(
        "import os, signal, time\n\ndef load():\n    time.sleep(2)\n    os.kill(os.getpid(), 9)\n"
    )
    outcome, _ = suffered(2, f"import runpy; runpy.run_path({str(file)!r})['load']()", tmp_path)
    assert re.search(rf"rank \d: failed, last started .*; rank 2 is lost, {LAST}", outcome.output)
    assert "loaders.py" not in outcome.output


@pytest.mark.slow
@pytest.mark.parametrize("replicas", ["2", "4"])
def test_a_rank_of_another_replica_is_named(
    replicas: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICAS", replicas)
    outcome, taken = suffered(2, "os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert taken < SLACK + 1
    assert [code for i, code in enumerate(outcome.codes) if i != 2] == [6] * 3
    assert re.search(
        r"rank [01]: failed, .*; rank 2 is lost, last seen at .* step 0, at training_faults", outcome.output
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_stops_is_named(rank: int, tmp_path: Path) -> None:
    outcome, taken = suffered(rank, "os.kill(os.getpid(), signal.SIGSTOP)", tmp_path)
    assert taken < TIMEOUT + SLACK + 1
    assert [code for i, code in enumerate(outcome.codes) if i != rank] == [6] * 3
    assert re.search(rf"; rank {rank} is (lost, last seen|late, still) at ", outcome.output)


@SLOW
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    outcome, taken = suffered(2, "time.sleep(300)", tmp_path)
    assert taken < TIMEOUT + SLACK + 1
    assert outcome.codes == [6] * 4
    assert re.search(r"; rank 2 is late, still at .*, at training_faults\.py:\d+", outcome.output)
    assert re.search(r"this rank is at .* \(training_faults\.py:\d+\), where not every rank", outcome.output)


@SLOW
def test_an_exception_is_named(tmp_path: Path) -> None:
    outcome, taken = suffered(1, "raise KeyError('batch')", tmp_path)
    assert taken < SLACK + 1
    assert [code for i, code in enumerate(outcome.codes) if i != 1] == [6] * 3
    assert re.search(r"; the first to fail was rank 1, last started .*: KeyError: 'batch'", outcome.output)
    assert "Traceback (most recent call last)" in outcome.output  # the user's own


@pytest.mark.slow
def test_last_words_are_said_while_standard_error_is_replaced(tmp_path: Path) -> None:
    """As torch does while it prints an exception of the main thread."""
    outcome = forked(1, "import io; sys.stderr = io.StringIO(); time.sleep(300)", tmp_path)
    assert outcome.codes == [6] * 4
    assert all(f"rank {rank}: failed, last started" in outcome.output[rank] for rank in range(4))


def forked(rank: int, statement: str, folder: Path, *step: str, **variables: str) -> Outcome:
    """The same on ranks of the fork server, for faults that say on every rank what is wrong."""
    argv = str(TIMEOUT), str(folder / "mark"), str(rank), statement, *step
    return run_file(SCRIPT, 4, folder, *argv, variables=variables, seconds=100)


@pytest.mark.slow
def test_a_rank_that_ends_before_there_is_a_network_is_named(tmp_path: Path) -> None:
    outcome = forked(2, "os._exit(0)", tmp_path, "0")
    assert [code for i, code in enumerate(outcome.codes) if i != 2] == [6] * 3
    for rank in (0, 1, 3):
        assert re.search(r"failed, last started .*rank 2 is lost, it never came", outcome.output[rank])
        assert not re.search(r"rank [013] is (lost|late)", outcome.output[rank])


def test_a_rank_that_reaches_no_store_ends_with_the_others(tmp_path: Path) -> None:
    """torch tries a store that has gone again and again, for more than twice the timeout."""
    module = "synth.runtime.model.checks.training_watch"
    statement = f"import {module} as watch; watch.own_store = lambda: time.sleep(300)"
    outcome = forked(2, statement, tmp_path, "0")
    assert outcome.codes == [6] * 4
    assert "rank 2: failed, last started the meeting of the ranks: " in outcome.output[2]


@pytest.mark.slow
def test_the_rank_that_keeps_the_store_is_named_if_it_ends_before_there_is_a_network(tmp_path: Path) -> None:
    outcome = forked(0, "os.kill(os.getpid(), signal.SIGKILL)", tmp_path, "0")
    for rank in (1, 2, 3):
        assert outcome.codes[rank] not in (0, None)
        assert re.search(
            r"rank 0(, who keeps the store at \S+, is gone| has ended or is cut off| is lost| ended before)",
            outcome.output[rank],
        )


def test_a_nan_in_a_stored_gradient_is_named(tmp_path: Path) -> None:
    statement = "next(net.parameters()).grad.to_local().fill_(float('nan'))"
    output = "".join(forked(3, statement, tmp_path, finite="1").output)
    assert "FloatingPointError: layer 0: Ker is not finite on rank 3 (" in output
    assert not re.search(r"not finite on rank [012]|not finite on rank 3.*, rank", output)


def test_another_model_on_one_rank_is_refused(tmp_path: Path) -> None:
    outcome = forked(1, "model[2] = nn.Conv2d(8, 5, 3, padding=1)", tmp_path, "0")
    assert outcome.codes == [1] * 4
    text = "rank 1 has another model than rank 0: module 2 is Conv2d(8, 5, kernel_size=(3, 3)"
    for output in outcome.output:
        assert f"ValueError: {text}" in output


@pytest.mark.slow
def test_a_loop_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "2")
    outcome = started([str(SCRIPT)], 2, ["20", str(tmp_path / "mark"), "0", "pass"], LIMIT)
    assert outcome.codes == [0, 0], outcome.output
    assert "failed" not in outcome.output
    assert not os.path.exists(tmp_path / "mark")


@pytest.mark.slow
def test_a_rank_that_ends_in_an_uneven_last_batch_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEVEN", "1")
    outcome, taken = suffered(2, "os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert taken < SLACK + 1
    assert [code for i, code in enumerate(outcome.codes) if i != 2] == [6] * 3
    assert re.search(rf"rank \d: failed, last started .*; rank 2 is lost, {LAST}", outcome.output)
