"""The oldest torch with which synth runs."""

from __future__ import annotations

OLDEST = 2, 13  # that of pyproject.toml


def require_torch(version: str) -> None:
    """Raise `ImportError` for a torch that is older than `OLDEST`."""
    parts = version.split(".")[:2]
    known = len(parts) == 2 and all(each.isdigit() for each in parts)
    if known and tuple(map(int, parts)) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"torch {version} is too old for synth, which needs {oldest} or later; run"
            f" pip install 'torch>={oldest}'"
        )
