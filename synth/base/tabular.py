"""Results that are tables: as rows, as CSV text, and as a pandas frame."""

from __future__ import annotations

import csv
import importlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from synth.base.atomic_write import write_whole
from synth.base.errors import MissingExtraError


class Tabular(ABC):
    """A result with a table."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """One dict per row: column -> number or text; None where there is none. Columns name their units."""

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """CSV text with a head and one line per row. Missing numbers are empty.

        The text is written to the file `path` as well, if it is given. Raises `UsageError` if that is
        impossible; an earlier file is then unchanged.
        """
        rows = self.records()
        out = io.StringIO()
        writer = csv.DictWriter(
            out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
        text = out.getvalue()
        if path is not None:
            write_whole(os.fspath(path), text)
        return text

    def to_pandas(self) -> Any:
        """A pandas `DataFrame` with the same rows. Raises `MissingExtraError` without pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise MissingExtraError(
                "to_pandas needs pandas, which is not installed; pip install pandas"
            ) from None
        return pandas.DataFrame(self.records())


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """JSON data as one row: nested keys joined by dots; lists as text, and grids, such as `b=4 k=2`."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "grid" and inner is not None:
            found[f"{prefix}grid"] = " ".join(f"{axis}={n}" for axis, n in inner.items() if n > 1) or "1"
        elif isinstance(inner, Mapping):
            found |= flat(inner, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = " ".join(map(str, inner)) if isinstance(inner, list | tuple) else inner
    return found
