"""A disk that is full: what is written is named, nothing half-written is left, the file before is intact.

A file system of 256 KiB is mounted for a process of its own where the system lets us, and filled; elsewhere
a limit of the file size stands for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth.cli.main import main

LAYER = "conv2d:\n  input: [2, 4, 6, 6]\n  out_channels: 4\n  kernel: [3, 3]\n"
MOUNT = 'mount -t tmpfs -o size=256k none "$0" && exec "$@"'
SCRIPT = r"""
import json, os, resource, sys
from pathlib import Path
import torch
from synth.runtime.program.report import save_shards, write_report
from synth.cli.main import main

disk, kind, commands = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
for name in [*(name for name, *_ in commands), "rank-00000.json", "rank-00000.pt"]:
    Path(disk, name).write_text("before")
before = sorted(os.listdir(disk))
if kind == "mount":
    with open(disk / "ballast", "wb", buffering=0) as ballast:
        try:
            while ballast.write(b"x" * 4096):
                pass
        except OSError as error:
            print("full:", error.strerror)
    before = sorted(os.listdir(disk))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
codes = [main(words) for _, *words in commands]
for write in (
    lambda: write_report(str(disk), 0, {"words": [1] * 9999}),
    lambda: save_shards(str(disk), 0, {"Out": (((0, 999),), torch.ones(999))}),
):
    try:
        write()
    except OSError as error:
        codes.append(error.strerror)
intact = all((disk / name).read_text() == "before" for name in before if name != "ballast")
print(json.dumps([codes, intact, sorted(os.listdir(disk)) == before]))
"""


def mountable(folder: Path) -> bool:
    """Whether a process may have a file system of its own."""
    try:
        tried = subprocess.run(
            ["unshare", "-rm", "sh", "-c", MOUNT, str(folder), "true"], capture_output=True, check=False
        )
    except OSError:
        return False
    return tried.returncode == 0


@pytest.mark.parametrize("limit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_full_disk_leaves_what_was_there(limit: bool, tmp_path: Path) -> None:
    disk, files = tmp_path / "disk", tmp_path / "files"
    disk.mkdir()
    files.mkdir()
    kind = "limit" if limit or not mountable(disk) else "mount"
    layer, plan = files / "l.yaml", files / "plan.json"
    layer.write_text(LAYER)
    assert main(["plan", str(layer), "--procs", "4", "--json", "-o", str(plan)]) == 0
    asked = [str(layer), "--procs", "4"]
    commands = [
        ["plan.txt", "plan", *asked],
        ["plan.json", "plan", *asked, "--json"],
        ["certificate.json", "plan", *asked, "--certify"],
        ["program.py", "emit", *asked],
        ["alone.py", "emit", *asked, "--standalone"],
        ["bounds.csv", "bounds", *asked, "--bounds-only", "--csv"],
        ["report.html", "report", str(plan)],
        ["words.svg", "plot", str(plan), "--picture", "words"],
    ]
    lines = [[name, *words, "-o", str(disk / name)] for name, *words in commands]
    lines.append(["job.sbatch", "emit", *asked, "-o", os.devnull, "--sbatch", str(disk / "job.sbatch")])
    words = [sys.executable, "-c", SCRIPT, str(disk), kind, json.dumps(lines)]
    enter = ["unshare", "-rm", "sh", "-c", MOUNT, str(disk)] if kind == "mount" else []
    done = subprocess.run([*enter, *words], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    codes, intact, nothing_new = json.loads(done.stdout.splitlines()[-1])
    reason = "No space left on device" if kind == "mount" else "File too large"
    assert codes == [2] * len(lines) + [reason] * 2
    assert intact
    assert nothing_new
    said = done.stderr.splitlines()
    assert said == [
        f"synth: {disk / name}: cannot be written ({reason}); check space and rights" for name, *_ in lines
    ]


def test_a_reader_who_left_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "synth", "schema"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


NO_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")


@NO_FULL
def test_output_to_a_full_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "examples/conv.yaml", "--procs", "64", "-o", "/dev/full"]) == 2
    assert capsys.readouterr().err == (
        "synth: /dev/full: cannot be written (No space left on device); name a file\n"
    )
    assert Path("/dev/full").is_char_device()


@NO_FULL
def test_a_full_output_is_named() -> None:
    for words in (["schema"], ["plan", "examples/conv.yaml", "--procs", "64"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "synth", *words],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr == (
            "synth: the output cannot be written or read (No space left on device); check space and rights\n"
        )
