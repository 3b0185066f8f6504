"""Weights that are brought before a layer's turn, on real ranks: the same bits, in another order."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

PROGRAM = "from early_ranks import main\n\nmain()\n"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        ("values", "residual free data mixed"),
        ("values", "cosmo volume"),
        ("values", "odd free"),
        ("order", ""),
        ("together", ""),
        ("broken", ""),
    ],
)
def test_early(function: str, argument: str, tmp_path: Path) -> None:
    outcome = run_ranks(PROGRAM, 4, tmp_path, function, argument)
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
