"""Lines, tables and paragraphs of plain text, at most `WIDTH` columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 110


def wrapped(lines: Iterable[str]) -> list[str]:
    """Lines of at most `WIDTH` columns; what is left of a longer one goes on below, further right."""
    rest = " " * 14
    return [
        part
        for line in lines
        for part in (textwrap.wrap(line, WIDTH, subsequent_indent=rest, break_on_hyphens=False) or [""])
    ]


def indented(lines: Iterable[str]) -> list[str]:
    """Lines moved two columns to the right."""
    return [f"  {line}" for line in lines]


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Columns of equal width; those in `right` are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
