"""Tables and paragraphs of plain text, at most `WIDTH` columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 110


def wrapped(lines: Iterable[str]) -> list[str]:
    """The lines, broken at `WIDTH` columns. Continuation lines are indented."""
    indent = " " * 14
    return [
        part
        for line in lines
        for part in (textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""])
    ]


def indented(lines: Iterable[str]) -> list[str]:
    """The lines, indented by two columns."""
    return [f"  {line}" for line in lines]


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows of cells as aligned columns. Columns whose index is in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
