"""The oldest torch with which synth runs."""

from __future__ import annotations

OLDEST = 2, 8  # that of pyproject.toml


def require_torch(version: str) -> None:
    """Raise `ImportError` for a torch that is older than `OLDEST`."""
    if is_older(version, OLDEST):
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"torch {version} is too old for synth, which needs {oldest} or later; run"
            f" pip install 'torch>={oldest}'"
        )


def is_older(version: str, oldest: tuple[int, int]) -> bool:
    """Whether a version of torch is older than another one; not where it is unknown."""
    parts = version.split(".")[:2]
    known = len(parts) == 2 and all(each.isdigit() for each in parts)
    return known and tuple(map(int, parts)) < oldest
