"""Files that users name: every reader has a bound of bytes, and reads plain files only."""

from __future__ import annotations

import io
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from synth.base.errors import InputError
from synth.base.user_files import MOST_JSON, read_text
from synth.base.yaml_positions import MAX_BYTES
from synth.cli.main import main

READERS = (  # every command that reads a file, with the file in the place of FILE
    "plan FILE.yaml --procs 4",
    "plan examples/conv.yaml --procs 4 --machine FILE.yaml --objective time",
    "bounds FILE.yaml --procs 4",
    "emit FILE.json",
    "simulate --plan FILE.json",
    "report FILE.json",
    "run --plan FILE.json",
    "certify FILE.json",
    "plot FILE.json -o out.svg",
    "predict FILE.yaml --procs 4 --machine lassen",
    "predict examples/networks/tutorial.yaml --procs 4 --machine FILE.yaml",
    "predict examples/networks/tutorial.yaml --procs 4 --machine lassen --profile FILE.csv",
    "replay FILE.yaml --procs 4 --machine lassen",
)


def refusal(path: object, most: int = MAX_BYTES, meant: str = "YAML file") -> str:
    with pytest.raises(InputError) as caught:
        read_text(path, most, meant)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_name_that_is_nearly_right_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "conv.yaml").write_text("conv2d: {}")
    assert refusal(tmp_path / "con.yaml").endswith(
        f"name a readable YAML file; did you mean {tmp_path}/conv.yaml?"
    )
    assert refusal(tmp_path / "other.yaml").endswith("name a readable YAML file")
    assert refusal(tmp_path / "none" / "conv.yaml").endswith("name a readable YAML file")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    gone = tmp_path / "gone.yaml"
    assert refusal(gone) == f"{gone}: cannot be read (No such file or directory); name a readable YAML file"
    assert refusal(tmp_path) == f"{tmp_path}: is a directory, not a file; name a YAML file"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").endswith("is a pipe or device, not a file; name a YAML file")
    assert refusal("/dev/zero").endswith("is a pipe or device, not a file; name a YAML file")
    assert refusal("a\0b") == "a\\x00b: is not a file name; name a YAML file"
    assert "cannot be read (" in refusal("x" * 5000)
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    assert refusal(big).startswith(f"{big}: has more than 1048576 bytes; ")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nname: caf\xe9\n")
    assert refusal(latin) == f"{latin}:2:10: is not UTF-8 text; save the file as UTF-8"
    wide = tmp_path / "wide.yaml"
    wide.write_bytes("a: 1".encode("utf-16"))
    assert "is not UTF-8 text" in refusal(wide)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert refusal(path) == f"{path}: cannot be read (Permission denied); name a readable YAML file"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("special", [_pipe, _sparse, _endless, Path.mkdir], ids=lambda f: f.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_no_command_reads_a_special_file(
    reader: str,
    special: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence, at once, and no more memory than the largest file that the reader takes."""
    suffix = re.search(r"FILE(\.\w+)", reader)[1]  # type: ignore[index]
    path = tmp_path / f"file{suffix}"
    special(path)
    tracemalloc.start()
    try:
        code = main(reader.replace(f"FILE{suffix}", str(path)).split())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    said = capsys.readouterr().err
    assert code in (2, 3)
    assert str(path) in said
    assert "not a file; name a" in said or "is smaller" in said
    assert len(said.splitlines()) == 1
    assert peak < 4 * MOST_JSON + (20 << 20)


def test_a_large_plan_on_standard_input_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reader, which looks for a layer, takes less than the second."""
    text = "#" * (MAX_BYTES + 1)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert refusal("-").startswith(f"-: has more than {MAX_BYTES} bytes; ")
    assert read_text("-", MOST_JSON, "plan file") == text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"#" * (MOST_JSON + 9))))
    assert refusal("-", MOST_JSON, "plan file").endswith("bytes; a plan file is smaller")
