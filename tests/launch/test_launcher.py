"""The launcher alone, with ranks that are small programs without torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fair_clock import FairClock
from processes import OWN, Processes, marked

from synth.base.errors import RunError
from synth.launch.launcher import Ended, started

ROOT = Path(__file__).parents[2]


def ended(text: str, folder: Path, procs: int = 3, limit: float = 100) -> Ended:
    """How ranks end that run a text; RANK is their number in it."""
    program = folder / "program.py"
    begin = "import os, signal, sys, time\nRANK = int(os.environ['RANK'])\n"
    begin += "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup, around the tests, ignores it
    program.write_text(f"{begin}{text}\n")
    return started([str(program)], procs, [], limit)


def test_codes_and_output(tmp_path: Path) -> None:
    line = "f'rank {RANK} of {os.environ[\"WORLD_SIZE\"]}\\n'"
    outcome = ended(f"sys.stdout.write({line})", tmp_path)  # one write, also without a buffer
    assert (outcome.codes, outcome.code, outcome.first_fault()) == ([0, 0, 0], 0, "")
    assert sorted(outcome.output.split("\n")) == ["", "rank 0 of 3", "rank 1 of 3", "rank 2 of 3"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was ended by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGHUP)", "rank 1 was ended by SIGHUP"),
        ("sys.exit(7)", "rank 1 ended with code 7"),
    ],
)
@pytest.mark.one_in(3)
def test_the_rank_that_ends_first_is_named(statement: str, said: str, tmp_path: Path) -> None:
    begin = FairClock()
    outcome = ended(f"if RANK == 1: {statement}\ntime.sleep(60)", tmp_path)
    assert outcome.code != 0
    assert outcome.last_words() == said
    assert outcome.codes[0] is outcome.codes[2] is None  # killed by the launcher
    assert begin.seconds() < 10


def test_a_stopped_rank_is_named_and_ended(tmp_path: Path) -> None:
    text = "if RANK == 2: os.kill(os.getpid(), signal.SIGSTOP)\nsys.exit(6)"
    outcome = ended(text, tmp_path)
    assert outcome.codes == [6, 6, None]
    assert outcome.last_words() == "rank 2 was stopped"


def test_the_rank_that_is_blamed_is_not_named_twice(tmp_path: Path) -> None:
    text = "if RANK: print('rank 1 (k=1): failed; rank 0 (k=0) is lost'); sys.exit(6)\n"
    outcome = ended(text + "os.kill(os.getpid(), signal.SIGKILL)", tmp_path, 2)
    assert outcome.last_words() == "rank 1 (k=1): failed; rank 0 (k=0) is lost"


def test_a_run_that_does_not_end_is_ended(tmp_path: Path) -> None:
    for limit in (1, 20, 100):  # on a busy machine a rank does not speak within a second
        with pytest.raises(RunError, match=f"did not end within {limit} s") as caught:
            ended("print('still here', flush=True); time.sleep(300)", tmp_path, limit=limit)
        if "still here" in str(caught.value):
            return
    pytest.fail("the error does not repeat what the rank said")


def test_the_port_is_free_and_kept_for_rank_0(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "import socket",
            "server = socket.socket()",
            "server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, RANK == 0)",
            "time.sleep(0.3 * RANK)",
            "try: server.bind(('', int(os.environ['MASTER_PORT']))); server.listen(); print('listens')",
            "except OSError: print('is refused')",
            "time.sleep(1)",
        ]
    )
    assert sorted(ended(text, tmp_path, 2).output.split("\n")) == ["", "is refused", "listens"]


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "json", "socket", "synth"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(99)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)  # an empty entry is the current folder
    outcome = started(["-m", "synth.base.units"], 1, [], 200)
    assert outcome.codes == [0], outcome.output
    command = [sys.executable, "-m", "synth", "schema"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    (tmp_path / "synth.py").unlink()  # `-m` finds the package by the current folder
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_is_left_under_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    assert ended("open(os.path.join(os.environ['TMPDIR'], 'x'), 'w') if False else None", tmp_path).code == 0
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_and_folder_go_when_the_starter_is_killed(
    number: int, tmp_path: Path, processes: Processes
) -> None:
    (tmp_path / "program.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open(os.path.join({str(tmp_path)!r}, 'mark' + os.environ['RANK']), 'w')\ntime.sleep(60)"
    )
    program = f"[{str(tmp_path / 'program.py')!r}]"
    killed_in(f"started({program}, 2, [], 60, folder=folder)", 2, number, tmp_path, processes)


def test_a_folder_goes_when_the_starter_is_killed_before_it_has_a_job(
    tmp_path: Path, processes: Processes
) -> None:
    mark = str(tmp_path / "mark")
    killed_in(f"open({mark!r}, 'w'); time.sleep(60)", 1, signal.SIGKILL, tmp_path, processes)


def killed_in(statement: str, marks: int, number: int, tmp_path: Path, processes: Processes) -> None:
    """Kill a starter that runs a statement with the folder of a run, when there are so many marks."""
    script = (
        "import time; from synth.launch.launcher import run_folder, started\n"
        f"with run_folder('synth-test-') as folder: {statement}"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    starter = processes.start([sys.executable, "-c", script], env=environment)
    begin = FairClock()
    while len(list(tmp_path.glob("mark*"))) < marks:
        assert begin.seconds() < 30
        assert starter.poll() is None
        time.sleep(0.05)
    assert len(list(tmp_path.glob("synth-test-*"))) == 1
    starter.send_signal(number)
    starter.wait()
    gone = FairClock()
    while marked(OWN, processes.mark) or list(tmp_path.glob("synth-test-*")):
        assert gone.seconds() < 5
        time.sleep(0.05)


@pytest.mark.slow
def test_a_rank_that_stays_stopped_ends_the_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(60)"
    )
    begin = FairClock()
    outcome = started([str(program)], 2, [], 60, patience=1.0)
    assert outcome.last_words() == "rank 1 was stopped"
    assert begin.seconds() < 10


@pytest.mark.parametrize(
    ("codes", "said", "fault"),
    [
        ([6, 0, 6], "rank 0: failed, last started the meeting of the ranks: no", "rank 1 ended with code 0"),
        ([6, 0, 6], "rank 0: failed, last started Ker, loop step 3: the disk is full", ""),
        ([None, 0, 6], "", "rank 1 ended with code 0"),
        ([0, 0, 0], "", ""),
    ],
)
def test_a_rank_that_ends_before_the_ranks_meet_is_seen(
    codes: list[int | None], said: str, fault: str
) -> None:
    ended = Ended(codes, said, [1, *(rank for rank in (0, 2) if codes[rank] is not None)])
    assert ended.first_fault().startswith(fault)
    assert bool(ended.first_fault()) == bool(fault)
