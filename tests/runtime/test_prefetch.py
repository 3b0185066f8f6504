"""Weights that are brought before a layer's turn, on real ranks: the same bits, in another order."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

PROGRAM = "from prefetch_ranks import main\n\nmain()\n"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("function", "argument", "ranks"),
    [
        pytest.param("values", "residual free data mixed", 4, marks=pytest.mark.slow),
        ("values", "cosmo volume", 4),
        ("values", "odd free", 4),
        ("order", "", 4),
        ("together", "", 4),
        pytest.param("broken", "", 3, marks=pytest.mark.slow),
        ("hooked", "", 2),
        ("idle", "", 5),
        ("slices", "", 4),
    ],
)
def test_prefetch(function: str, argument: str, ranks: int, tmp_path: Path) -> None:
    outcome = run_ranks(PROGRAM, ranks, tmp_path, function, argument)
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
