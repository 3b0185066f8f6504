"""Special files, each as a process of its own: one sentence within 10 s of processor time and 300 MiB."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from test_user_files import READERS

from synth.base.user_files import MOST_JSON
from synth.base.yaml_positions import MAX_BYTES

MOST_SECONDS, MOST_MEMORY = 10.0, 300 << 20
DOORS = (  # one command for each kind of file that is parsed
    "plan FILE.yaml --procs 4",
    "plan examples/conv.yaml --procs 4 --machine FILE.yaml --objective time",
    "predict FILE.yaml --procs 4 --machine lassen",
    "predict examples/networks/tutorial.yaml --procs 4 --machine lassen --profile FILE.csv",
    "emit FILE.json",
    "certify FILE.json",
)


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _slow_pipe(path: Path) -> None:
    """A pipe whose writer sends a byte now and then."""
    os.mkfifo(path)

    def write() -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end and path.exists():
            with suppress(OSError):
                opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                os.write(opened, b"#")
                os.close(opened)
            time.sleep(0.05)

    threading.Thread(target=write, daemon=True).start()


def _socket(path: Path) -> None:
    held = socket.socket(socket.AF_UNIX)
    before = os.getcwd()
    os.chdir(path.parent)  # a name of a socket has at most 107 characters
    try:
        held.bind(path.name)
    finally:
        os.chdir(before)
        held.close()


def _sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return make


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "slow pipe": _slow_pipe,
    "socket": _socket,
    "folder": Path.mkdir,
    "zeros": _link("/dev/zero"),
    "random": _link("/dev/urandom"),
    "full": _link("/dev/full"),
    "terminal": _link("/dev/tty"),
    "memory": _link("/proc/self/mem"),
    "pages": _link("/proc/self/pagemap"),
    "messages": _link("/proc/kmsg"),
    "nowhere": _link("nowhere"),
    "loop": _loop,
    "sparse GiB": _sparse(1 << 30),
    "sparse TiB": _sparse(1 << 40),
}


def _lines(line: str) -> Callable[[int], str]:
    return lambda most: line * (most // len(line))


CONTENTS: dict[str, Callable[[int], str]] = {  # texts of as many bytes as a reader takes
    "empty lists": lambda most: "[" + "[]," * (most // 3 - 2) + "[]]",
    "empty maps": lambda most: "[" + "{}," * (most // 3 - 2) + "{}]",
    "numbers": lambda most: "[" + "1," * (most // 2 - 2) + "1]",
    "depth": lambda most: "[" * (most // 2) + "]" * (most // 2),
    "digits": lambda most: "1" * most,
    "string": lambda most: '"' + "a" * (most - 2) + '"',
    "wide string": lambda most: '"' + "a" * (most - 6) + '\U0001d482"',
    "keys": lambda most: "{" + ",".join(f'"{n}":0' for n in range(most // 12)) + "}",
    "comment": lambda most: "#" * most,
    "items": _lines("- a\n"),
    "pairs": lambda most: "".join(f"k{n}: 1\n" for n in range(most // 12)),
    "dashes": _lines("- "),
    "layers": lambda most: "network: a\nlayers:\n" + "- {a: b}\n" * (most // 9 - 3),
    "rows": lambda most: "layer,forward_s,backward_s,update_s\n" + "a,1,1,1\n" * (most // 8 - 5),
    "quotes": _lines('"'),
    "carriage returns": _lines("\r"),
}


MEASURED = """
import json, os, subprocess, sys, threading
process = subprocess.Popen(
    sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
)
timer = threading.Timer(120, process.kill)
timer.start()
said = process.stderr.read().decode(errors="replace")
_, status, used = os.wait4(process.pid, 0)
timer.cancel()
process.returncode = os.waitstatus_to_exitcode(status)
print(json.dumps([process.returncode, said, used.ru_utime + used.ru_stime, used.ru_maxrss << 10]))
"""


def outcome(command: list[str]) -> tuple[int, str, float, int]:
    """Exit code, standard error, seconds of processor time, bytes of memory of a command of synth.

    A small process starts it: the kernel counts the memory of what starts a process as that of the process,
    and after some hundred tests this one has more than the limit.
    """
    given = [sys.executable, "-m", "synth", *command]
    made = subprocess.run([sys.executable, "-S", "-c", MEASURED, *given], stdout=subprocess.PIPE, check=True)
    code, said, seconds, memory = json.loads(made.stdout)
    return code, said, seconds, memory


def test_memory_is_that_of_the_command() -> None:
    held = bytearray(2 * MOST_MEMORY)
    held[:: 1 << 12] = b"1" * len(held[:: 1 << 12])
    code, _, _, memory = outcome(["--version"])
    assert code == 0
    assert 0 < memory < MOST_MEMORY


def _refused(reader: str, path: Path) -> None:
    name = next(word for word in reader.split() if word.startswith("FILE"))
    code, said, seconds, memory = outcome([str(path) if word == name else word for word in reader.split()])
    assert code in (2, 3), said
    assert len(said.splitlines()) == 1
    assert str(path)[:30] in said  # a long name is cut in some sentences
    assert len(said) < 1000 + len(str(path))
    assert seconds < MOST_SECONDS
    assert memory < MOST_MEMORY


def _suffix(reader: str) -> str:
    return next(Path(word).suffix for word in reader.split() if word.startswith("FILE"))


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    return


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECIAL)
def test_every_command_refuses_a_special_file(kind: str, tmp_path: Path) -> None:
    for number, reader in enumerate(READERS):
        path = tmp_path / f"file{number}{_suffix(reader)}"
        SPECIAL[kind](path)
        _refused(reader, path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTENTS)
def test_every_reader_refuses_a_file_of_the_largest_size(kind: str, tmp_path: Path) -> None:
    for number, reader in enumerate(DOORS):
        most = MOST_JSON if _suffix(reader) == ".json" else MAX_BYTES
        path = tmp_path / f"file{number}{_suffix(reader)}"
        path.write_text(CONTENTS[kind](most - 4), newline="")
        _refused(reader, path)


def test_a_file_of_the_kernel_with_nothing_to_say_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some files of /proc are plain, but have no bytes yet; a read that may not wait gives none."""
    from synth.base import user_files

    class Silent:
        def __enter__(self) -> Silent:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, _most: int) -> None:
            return None

    path = tmp_path / "file.yaml"
    path.touch()
    monkeypatch.setattr("builtins.open", lambda *_: Silent())
    assert user_files.read_text(path) == ""
