"""Devices and pipes are written to, never replaced by a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from synth.base.atomic_write import write_whole
from synth.base.errors import UsageError


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(str(pipe), "plan")
    reader.join(10)
    assert read == ["plan"]
    assert pipe.is_fifo()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(str(tmp_path), "plan")
