"""The batch scripts for SLURM, with stand-ins for `scontrol` and `srun`: the ranks meet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Processes

from synth.launch.launcher import environment
from synth.runtime.grid import meeting
from synth.runtime.grid.launched_job import NO_ADDRESS
from synth.runtime.program import world

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/longjobs.md").read_text(encoding="utf-8")
SCRIPT = next(each for each in re.findall(r"```bash\n(.*?)```", PAGE, re.S) if "srun" in each)
TEMPLATE = (ROOT / "codegen/templates/job.sbatch.j2").read_text(encoding="utf-8")
TRAIN = """
import torch
import torch.distributed as dist
import synth
synth.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {total.item():.0f}\\n", end="", flush=True)
dist.destroy_process_group()
"""
STAND_INS = {
    # more names than a pipe holds, written one by one
    "scontrol": "#!/bin/bash\necho 127.0.0.1\nseq -f node%08g 20000\n",
    "srun": (
        f"#!{sys.executable}\nimport os, subprocess, sys\n"
        "command = [each for each in sys.argv[1:] if not each.startswith('--')]\n"
        "ranks = [subprocess.Popen(command, env=os.environ | {'SLURM_PROCID': str(rank), 'SLURM_NTASKS': '2',"
        " 'SLURM_LOCALID': str(rank)}) for rank in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    ),
    "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
}


@pytest.mark.ranks
@pytest.mark.parametrize("exported", [True, False], ids=["as printed", "without the address"])
def test_the_batch_script_of_the_page(exported: bool, tmp_path: Path, processes: Processes) -> None:
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    script = SCRIPT if exported else re.sub(r"^export MASTER.*\n", "", SCRIPT, flags=re.M)
    (tmp_path / "train.sbatch").write_text(script)
    made = environment() | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": str(os.getpid())}
    ran = processes.start(
        ["bash", "train.sbatch"],
        env=made | {"SLURM_JOB_NODELIST": "node[1-2]"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = ran.communicate(timeout=90)
    assert (ran.returncode == 0) == exported, errors
    assert sorted(output.splitlines()) == (["rank 0 of 2", "rank 1 of 2"] if exported else [])
    assert errors.count(f"ValueError: {NO_ADDRESS}") == (0 if exported else 2)


def test_the_page_has_the_lines_that_are_emitted() -> None:
    wanted = [line for line in TEMPLATE.splitlines() if re.match(r"# Rank 0|MASTER|export|set ", line)]
    assert len(wanted) == 6
    assert [line for line in SCRIPT.splitlines() if line in wanted] == wanted


def test_ranks_without_an_address_say_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    with pytest.raises(ValueError, match=re.escape(NO_ADDRESS)):
        meeting.meet(0, 2, None, world.datetime.timedelta(seconds=1))
    with pytest.raises(SystemExit) as ended:
        world.start("plan", {"b": 2}, 2, 1.0)
    assert (ended.value.code, capsys.readouterr().err) == (2, f"{NO_ADDRESS}\n")
