"""One run of the command line in this process: its exit code, and what it prints."""

from __future__ import annotations

import pytest

from synth.cli.main import main

SMALL = "examples/small.yaml"  # seen from the root of the repository
CONV = "examples/conv.yaml"
NETWORK = "examples/networks/cosmoflow.yaml"

Captured = pytest.CaptureFixture[str]


def told(capsys: Captured, *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `synth` with some arguments."""
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err
