"""Faults of a rank: all ranks end in time, none with code 0, and the messages name the faulty rank.

docs/robustness.md is the table of these faults. Most run on ranks of the fork server; how torchrun, a signal
to `synth run` and the death of the launcher behave is tried with the real ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fair_clock import FairClock
from fault_injection import AT, BEFORE, HOOK, PLAN, RANK, SLACK, STARTED, TIMEOUT, broken
from processes import OWN, Processes, command_lines, marked
from ranks import PATHS, Outcome, run_ranks

from synth.base.errors import CheckError, RunError
from synth.launch import run as driver
from synth.launch.launcher import started
from synth.planning.plan_json import to_json

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc"),
]
ROOT = Path(__file__).parents[2]
LOST = f"; rank {RANK} ({AT}) is lost, last seen at {STARTED}"


def suffered(statement: str, folder: Path, *flags: str, hook: str = HOOK) -> Outcome:
    """The outcome of a run in which rank 2 runs a statement; checks that all ranks end in time."""
    mark = folder / "mark"
    clock = FairClock()
    for _ in range(3):  # on a busy machine the ranks may not meet in time, and the fault never comes
        outcome = run_ranks(broken(statement, mark, hook), 4, folder, *flags, timeout=TIMEOUT)
        if mark.exists():
            break
    taken = time.time() - mark.stat().st_mtime
    print(f"{statement}: over after {taken:.1f} s")
    assert clock.seconds(taken) < TIMEOUT + SLACK
    return outcome


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSTOP)", -signal.SIGKILL),
        pytest.param("os._exit(0)", 0, marks=pytest.mark.slow),
        ("sys.exit(0)", 0),
    ],
    ids=["killed", "stopped", "vanished", "left"],
)
@pytest.mark.one_in(3)
def test_a_lost_rank_is_named(statement: str, code: int, tmp_path: Path) -> None:
    outcome = suffered(statement, tmp_path)
    assert outcome.codes[RANK] == code
    others = [c for rank, c in enumerate(outcome.codes) if rank != RANK]
    assert others == [6] * 3, outcome.output
    told = "".join(outcome.output)
    assert LOST in told
    assert "rank 3 (b=1 k=1): failed, last started" in outcome.output[3]


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    outcome = suffered("time.sleep(300)", tmp_path)
    assert set(outcome.codes) == {6}
    assert f"; rank {RANK} ({AT}) is late, still at {STARTED}" in "".join(outcome.output)


def test_a_rank_that_raises_is_named(tmp_path: Path) -> None:
    outcome = suffered("raise KeyError('panel')", tmp_path)
    assert outcome.codes == [6] * 4
    assert outcome.output[RANK] == f"rank {RANK} ({AT}): failed, last started {STARTED}: KeyError: 'panel'\n"
    assert f"; the first to fail was rank {RANK} ({AT}), last started {STARTED}: KeyError" in "".join(
        outcome.output
    )


@pytest.mark.parametrize("value", ["nan", pytest.param("inf", marks=pytest.mark.slow)])
def test_a_value_that_is_no_number_is_named(value: str, tmp_path: Path) -> None:
    statement = f"[panel.fill_(float('{value}')) for panel in panels.values()]"
    told = named_by_all(suffered(statement, tmp_path, "--check"))
    assert "FloatingPointError: Out has NaN or infinity in 1024 of 1024 words after loop step 1" in told


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "in_own[0, 0, 1, 1] = float('nan')",
            "FloatingPointError: In has NaN or infinity in 1 of 1024 words",
        ),
        pytest.param(
            "ker_own[1] = float('-inf')",
            "FloatingPointError: Ker has NaN or infinity in 72 of 576 words",
            marks=pytest.mark.slow,
        ),
        (
            "in_own = in_own[:, :-1]",
            "In is (2, 7, 8, 8) of torch.float32, but this rank owns (2, 8, 8, 8) of",
        ),
        (
            "ker_own = ker_own.double()",
            "Ker is (8, 8, 3, 3) of torch.float64, but this rank owns (8, 8, 3, 3) of",
        ),
    ],
    ids=["nan", "inf", "shape", "dtype"],
)
@pytest.mark.one_in(3)
def test_a_rank_with_other_data_is_named(statement: str, said: str, tmp_path: Path) -> None:
    told = named_by_all(suffered(statement, tmp_path, "--check", hook=BEFORE))
    assert f"last started the barrier before a run: {said}" in told


def named_by_all(outcome: Outcome) -> str:
    """The output of rank 2, after all ranks ended with 6 and another one named it as the first to fail."""
    assert set(outcome.codes) == {6}, outcome.output
    told = outcome.output[RANK]
    assert told.startswith(f"rank {RANK} ({AT}): failed, last started "), told
    others = "".join(each for rank, each in enumerate(outcome.output) if rank != RANK)
    assert f"; the first to fail was rank {RANK} ({AT}), last started " in others
    return told


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    statement = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))"
    outcome = suffered(statement, tmp_path)
    assert set(outcome.codes) == {6}
    assert f"rank {RANK} ({AT}): failed, last started the writing of the report:" in outcome.output[RANK]
    assert "File too large" in outcome.output[RANK]
    assert not list(tmp_path.glob("rank-00002.json"))


@pytest.mark.slow
def test_another_plan_and_another_world_are_refused(tmp_path: Path) -> None:
    text = broken("pass").replace('PLAN = "', 'PLAN = "other" * (os.environ["RANK"] == "2") + "')
    outcome = run_ranks(text, 4, tmp_path, timeout=TIMEOUT)
    assert outcome.codes == [2] * 4
    assert "rank 2 runs another plan than rank 0" in outcome.output[0]
    outcome = run_ranks(broken("pass"), 3, tmp_path, timeout=TIMEOUT)
    assert outcome.codes == [2] * 3
    assert "this program is for 4 ranks, a grid b=2 x k=2, but was started with 3" in outcome.output[0]


def run_broken(statement: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of `synth run` about a faulty program; it comes in time, and no process is left."""
    mark = folder / "mark"
    monkeypatch.setattr(driver, "render", lambda *_, **__: broken(statement, mark))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    clock = FairClock()
    for _ in range(3):  # on a busy machine the ranks may not meet in time, and the fault never comes
        with pytest.raises((RunError, CheckError)) as caught:
            driver.run(PLAN, timeout=TIMEOUT, repetitions=0)
        if mark.exists():
            break
    taken = time.time() - mark.stat().st_mtime
    print(f"{statement} under synth run: over after {taken:.1f} s")
    assert clock.seconds(taken) < TIMEOUT + SLACK
    assert not command_lines(str(folder))
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        *(f"os.kill(os.getpid(), signal.{name})" for name in ("SIGKILL", "SIGSTOP")),
        "os._exit(0)",
        "sys.exit(7)",
    ],
)
def test_synth_run_names_a_lost_rank(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOST in run_broken(how, tmp_path, monkeypatch)


@pytest.mark.slow
def test_synth_run_names_a_rank_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = run_broken("raise KeyError('panel')", tmp_path, monkeypatch)
    assert f"last started {STARTED}: KeyError: 'panel'" in told


@pytest.mark.slow
def test_synth_run_ends_a_rank_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = run_broken("time.sleep(300)", tmp_path, monkeypatch)
    assert f"rank {RANK} ({AT})" in told


def run_and_disturb(folder: Path, number: int, of: str, processes: Processes) -> tuple[int, str]:
    """Exit code and error of `synth run` on a program that hangs, after a signal to one process."""
    mark = folder / "mark"
    text = broken("time.sleep(300)", mark)
    (folder / "plan.json").write_text(json.dumps(to_json(PLAN)))
    script = "\n".join(
        [
            "import signal, sys, synth.cli.main, synth.launch.run",
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)",  # nohup, around the tests, ignores it
            f"synth.launch.run.render = lambda *_, **__: {text!r}",
            f"sys.exit(synth.cli.main.main(['run', {str(folder / 'plan.json')!r}, '--timeout', '60']))",
        ]
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "TMPDIR": str(folder)}
    process = processes.start(
        [sys.executable, "-c", script], env=environment, text=True, stderr=subprocess.PIPE
    )
    begin = FairClock()
    while not mark.exists():
        assert process.poll() is None
        assert begin.seconds() < 100
        time.sleep(0.1)
    (found, *_) = (pid for pid, line in command_lines(of).items() if pid in marked(OWN, processes.mark))
    disturbed = FairClock()
    os.kill(found, number)
    _, told = process.communicate(timeout=300)
    while marked(OWN, processes.mark):  # what the supervisor ends when its starter is gone
        assert disturbed.seconds() < SLACK
        time.sleep(0.05)
    print(f"{signal.Signals(number).name} to {of}: over after {disturbed.seconds():.1f} s")
    assert disturbed.seconds() < SLACK
    assert sorted(path.name for path in folder.iterdir()) == ["mark", "plan.json"]  # TMPDIR is empty
    return process.returncode, told


@pytest.mark.slow
def test_an_interrupted_run_ends_its_ranks(tmp_path: Path, processes: Processes) -> None:
    code, told = run_and_disturb(tmp_path, signal.SIGINT, "synth.launch.run.render", processes)
    assert (code, told) == (130, "synth: interrupted\n")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
@pytest.mark.one_in(3)
@pytest.mark.slow
def test_a_run_that_is_told_to_end_leaves_nothing(
    number: int, code: int, tmp_path: Path, processes: Processes
) -> None:
    name = signal.Signals(number).name
    expected = "" if number == signal.SIGKILL else f"synth: ended by {name}\n"
    found = run_and_disturb(tmp_path, number, "synth.launch.run.render", processes)
    assert found == (code, expected)


@pytest.mark.slow
def test_ranks_do_not_outlive_their_supervisor(tmp_path: Path, processes: Processes) -> None:
    code, told = run_and_disturb(tmp_path, signal.SIGKILL, "supervisor.py", processes)
    assert code == 6
    assert "the process that supervises the ranks was ended" in told


@pytest.mark.slow
def test_ranks_do_not_outlive_their_launcher(tmp_path: Path, processes: Processes) -> None:
    mark, program = tmp_path / "mark", tmp_path / "program.py"
    program.write_text(broken("time.sleep(300)", mark))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    with open(tmp_path / "said", "w+") as said:
        process = processes.start([*command, str(program)], env=environment, stdout=said, stderr=said)
        begin = FairClock()
        while not mark.exists():
            assert process.poll() is None
            assert begin.seconds() < 100
            time.sleep(0.1)
        process.kill()
        process.wait()
        disturbed = FairClock()
        while marked(OWN, processes.mark):
            assert disturbed.seconds() < SLACK
            time.sleep(0.05)
        said.seek(0)
        told = said.read()
    assert "): failed, last started Ker, loop step" in told
    assert "its launcher is gone" in told or "the launcher, who keeps the store at " in told


@pytest.mark.slow
def test_a_rank_that_ends_before_the_ranks_meet_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os\nif os.environ['RANK'] == '1': os._exit(0)\n" + broken("pass"))
    begin = FairClock()
    outcome = started([str(program)], 4, ["--timeout", "90"], 280)
    assert re.search(
        r"rank [023] .*: failed, .*: rank 1 \(b=0 k=1\) ended before the ranks met", outcome.output
    )
    assert begin.seconds() < 60  # of which torch loads for 10 to 30, where other tests run beside


@pytest.mark.slow
def test_an_interrupt_in_a_notebook_ends_the_ranks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook turns it into KeyboardInterrupt, and goes on with the next cell."""
    mark = tmp_path / "mark"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(driver, "render", lambda *_, **__: broken("time.sleep(300)", mark))

        def interrupt() -> None:
            while not mark.exists():
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                driver.run(PLAN, timeout=300, repetitions=0)
        finally:
            signal.signal(signal.SIGINT, before)
    assert not command_lines(str(tmp_path))
    assert driver.run(PLAN, timeout=300, repetitions=0)  # the next cell


@pytest.mark.slow
def test_ranks_whose_launcher_ended_while_they_started_end(tmp_path: Path, processes: Processes) -> None:
    program = tmp_path / "program.py"
    begun = str(tmp_path / "begun")
    program.write_text(f"import time\nopen({begun!r}, 'w').close()\ntime.sleep(2)\n" + broken("pass"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    launcher = processes.start([*command, str(program)], env=environment, stderr=subprocess.DEVNULL)
    begin = FairClock()
    while not os.path.exists(begun):
        assert begin.seconds() < 100
        time.sleep(0.1)
    launcher.kill()
    launcher.wait()
    killed = FairClock()
    while marked(OWN, processes.mark):  # the timeout is 60 s
        assert killed.seconds() < 40
        time.sleep(0.1)
