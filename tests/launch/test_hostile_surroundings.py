"""What surrounds a run: another job on its port, a full folder for temporary files, a slow machine."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fair_clock import FairClock
from fault_injection import PLAN, TIMEOUT, broken
from processes import OWN, Processes, marked
from ranks import free_port, run_ranks

from synth.launch.launcher import environment

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc"),
]
ROOT = Path(__file__).parents[2]
# a child stops the rank and lets it go on, so that it has a tenth of the time
SLOWED = (
    "me = os.getpid(); child = os.fork(); "
    "child or [(os.kill(me, signal.SIGSTOP), time.sleep(0.09), os.kill(me, signal.SIGCONT), time.sleep(0.01))"
    " for _ in range(60)] and os._exit(0); "
    "begin = time.process_time(); [None for _ in iter(lambda: time.process_time() - begin > 0.5, True)]"
)


def job(
    program: Path, ranks: range, port: int, timeout: float, processes: Processes
) -> list[subprocess.Popen[str]]:
    """Some of the four ranks of a job of its own, which meet at a port."""
    shared = environment() | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    return [
        processes.start(
            [sys.executable, str(program), "--timeout", str(timeout)],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ranks
    ]


def said(ranks: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """Codes and output of ranks that end."""
    output = "".join(rank.communicate(timeout=100)[0] for rank in ranks)
    return [rank.returncode for rank in ranks], output


@pytest.mark.slow
def test_two_jobs_on_one_port_do_not_mix(tmp_path: Path, processes: Processes) -> None:
    first, second, mark = tmp_path / "first.py", tmp_path / "second.py", tmp_path / "mark"
    first.write_text(broken("time.sleep(15)", mark))
    second.write_text(broken("pass"))
    port = free_port()
    running = job(first, range(4), port, 60, processes)
    begin = FairClock()
    while not mark.exists():
        assert begin.seconds() < 100
        time.sleep(0.1)
    intruders = job(second, range(4), port, 4, processes)
    codes, output = said(intruders)
    assert 0 not in codes
    assert f"127.0.0.1:{port}" in output
    codes, output = said(running)
    assert codes == [0] * 4, output
    assert not marked(OWN, processes.mark)


@pytest.mark.parametrize("most", [1000, 60_000], ids=["program", "results"])
@pytest.mark.one_in(2)
def test_a_full_folder_for_temporary_files_is_named(most: int, tmp_path: Path, processes: Processes) -> None:
    layer = tmp_path / "layer.yaml"
    layer.write_text("conv2d: {input: [8, 8, 32, 32], out_channels: 8, kernel: [3, 3], padding: 1}\n")
    folder = tmp_path / "tmp"
    folder.mkdir()

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [sys.executable, "-m", "synth", "run", str(layer), "--procs", "2", "--timeout", "10"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), OWN: processes.mark},
        preexec_fn=full,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode not in (0, 1), done
    assert "File too large" in done.stderr
    assert most > 1000 or str(folder) in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_slow_rank_is_not_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    outcome = run_ranks(broken(SLOWED, mark), PLAN.procs, tmp_path, timeout=5 * TIMEOUT)
    assert outcome.codes == [0] * 4, outcome.output
    assert mark.exists()


@pytest.mark.parametrize("days", [-400, 400])
@pytest.mark.one_in(2)
def test_a_clock_that_jumps_loses_no_rank(days: int, tmp_path: Path) -> None:
    """As where a clock is set, or two hosts differ: no deadline reads the time of day."""
    mark = tmp_path / "mark"
    jump = f"own = time.time; time.time = lambda: own() + {days} * 86400; time.sleep(2.5)"
    outcome = run_ranks(broken(jump, mark), PLAN.procs, tmp_path, timeout=5 * TIMEOUT)
    assert outcome.codes == [0] * 4, outcome.output
    assert mark.exists()
