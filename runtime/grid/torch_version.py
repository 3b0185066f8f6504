"""The oldest torch with which synth runs."""

from __future__ import annotations

import re

OLDEST = 2, 8  # that of pyproject.toml


def require_torch(version: str) -> None:
    """Raise `ImportError` for a torch that is older than `OLDEST`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"torch {version} is too old for synth, which needs {oldest} or later; run"
            f" pip install 'torch>={oldest}'"
        )
