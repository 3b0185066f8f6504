"""What a rank says at its end never keeps it from ending."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from synth.launch.launcher import HOME

SAY = "from synth.runtime.grid.launched_job import say_at_once; say_at_once('rank 1: failed' + 'x' * {long})"


@pytest.mark.parametrize("full", [False, True])
def test_a_line_is_said_unless_nobody_takes_it(full: bool) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    while full:
        try:
            os.write(theirs, b"-" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(theirs, True)
    command = [sys.executable, "-c", SAY.format(long=10000)]
    subprocess.run(command, stderr=theirs, timeout=300, check=True, env=os.environ | {"PYTHONPATH": HOME})
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    assert (b"rank 1: failed" in said) == (not full)
    assert full or len(said) == 4096  # one piece, however many ranks write
