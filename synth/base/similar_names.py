"""Names that a mistyped word may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def similar(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that is most like a word; "" where none is. cutoff: 1 for equal ones alone."""
    import difflib  # takes 5 ms, and only wrong input needs it

    return next(iter(difflib.get_close_matches(word[:100], list(known), n=1, cutoff=cutoff)), "")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean plan?` if a known word is similar, else nothing."""
    name = similar(word, known)
    return f"; did you mean {name}?" if name else ""
