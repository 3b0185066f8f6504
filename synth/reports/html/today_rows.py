"""The table "compared with what you use today" of the reports of layers and networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synth.analysis.today import Today
from synth.base.units import show_bytes, show_words


def today_rows(rows: Sequence[Today]) -> list[dict[str, Any]]:
    """Rows of the table, the plan first; `percent` is of the most words."""
    total = rows[0].words if rows else 0
    most = max([*(each.words or 0 for each in rows), 1])
    return [
        {
            "name": each.name,
            "how": each.how,
            "words": "-" if each.words is None else show_words(each.words),
            "times": each.times(total),
            "memory": "-" if each.memory_bytes is None else show_bytes(each.memory_bytes),
            "percent": round(100 * (each.words or 0) / most, 2),
        }
        for each in rows
    ]
