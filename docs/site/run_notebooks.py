"""Runs the notebooks of docs/notebooks and stores what their cells show: `make notebooks`.

The cells run in this process, one after the other, as a kernel would run them. What a cell prints and its
last expression are stored. Notebooks hold no numbers of executions and no times, so a run without changes
leaves the files as they are.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of a run. Raises what a cell raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell = {**cell, "execution_count": None, "outputs": outputs("".join(cell["source"]), names)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, then its last expression if that is not None."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    stored: list[dict[str, Any]] = []
    if printed.getvalue():
        stored.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
            if hasattr(value, method):
                data[kind] = lines(getattr(value, method)())
        stored.append(
            {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}
        )
    return stored


def lines(text: str) -> list[str]:
    """A text as notebooks hold it."""
    return text.splitlines(keepends=True)


def written(notebook: dict[str, Any]) -> str:
    """The text of a notebook file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Runs all notebooks."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(written(executed(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")


if __name__ == "__main__":
    main()
