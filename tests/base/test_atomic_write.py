"""Files appear whole or not at all; pipes and devices are written to, never replaced by a file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from synth.base.atomic_write import staged, write_whole
from synth.base.errors import UsageError


def test_a_file_is_written_with_the_usual_rights(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_whole(str(path), "σ\n")
    assert path.read_bytes() == "σ\n".encode()
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    write_whole(str(path), "again\n")
    assert path.read_text() == "again\n"
    assert os.listdir(tmp_path) == ["plan.json"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        UsageError, match=r"plan.json: cannot be written \(No space left on device\); check space"
    ):
        write_whole(str(path), "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: str, target: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(str(tmp_path / "plan.json"), "new")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none" / "plan.json"
    with pytest.raises(UsageError) as fault:
        write_whole(str(path), "new")
    assert str(fault.value) == (
        f"{path}: cannot be written (No such file or directory); check the folder and its rights"
    )


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(str(tmp_path), "new")
    assert os.listdir(tmp_path) == []


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(str(pipe), "plan")
    reader.join(100)
    assert read == ["plan"]
    assert pipe.is_fifo()


def test_a_file_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_whole("here.txt", "text")
    assert Path("here.txt").read_text() == "text"


WRITER = """
import sys
from synth.base.atomic_write import staged, write_whole
for turn in range(60):
    write_whole(sys.argv[1], sys.argv[2] * (200_000 + turn))
"""


def test_concurrent_writers_leave_the_file_whole_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("0")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), each]) for each in "abc"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        text = path.read_text()
        assert text == text[0] * len(text)
        assert len(text) == 1 or 200_000 <= len(text) < 200_060
        seen.add(text[0])
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen & set("abc")
    assert os.listdir(tmp_path) == ["plan.json"]


def test_concurrent_plans_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each of three processes plans another layer, into a file of its own and into one that all share."""
    program = (
        "import sys\nfrom synth.cli.main import main\n"
        "layer, own, shared = sys.argv[1:]\n"
        "for path in (own, shared, own):\n"
        "    assert not main(['plan', layer, '--procs', '6', '--json', '-o', path])\n"
    )
    started = []
    for number in range(3):
        layer = tmp_path / f"{number}.yaml"
        layer.write_text(f"matmul: {{m: {50 + number}, n: 40, k: 30}}\n")
        paths = [str(layer), str(tmp_path / f"{number}.json"), str(tmp_path / "shared.json")]
        started.append(subprocess.Popen([sys.executable, "-c", program, *paths]))
    assert [each.wait(200) for each in started] == [0, 0, 0]
    own = [(tmp_path / f"{number}.json").read_bytes() for number in range(3)]
    assert len(set(own)) == 3
    assert (tmp_path / "shared.json").read_bytes() in own
    assert len(os.listdir(tmp_path)) == 7


def test_rights_and_links_stay(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.write_text("old")
    secret.chmod(0o600)
    link.symlink_to("secret")
    write_whole(str(link), "new")
    assert link.is_symlink()
    assert secret.read_text() == "new"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["link", "secret"]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_writer_that_is_killed_leaves_no_part(tmp_path: Path) -> None:
    script = (
        "import os, signal; from synth.base import atomic_write\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"atomic_write.write_whole({str(tmp_path / 'plan.json')!r}, 'x' * 10**6)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -9
    assert os.listdir(tmp_path) == []


def test_outputs_that_belong_together_appear_together(tmp_path: Path) -> None:
    first, second = tmp_path / "job.sbatch", tmp_path / "none" / "program.py"
    with pytest.raises(UsageError, match=r"none/program.py: cannot be written"), staged(str(first), b"x"):
        write_whole(str(second), "y")
    assert os.listdir(tmp_path) == []
