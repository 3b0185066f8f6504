"""Notebooks as pages: their text, their code, and the outputs that they hold.

`make notebooks` runs them and stores the outputs; a test compares these with what the cells give.
"""

from __future__ import annotations

import json
from typing import Any

from myst_parser.sphinx_ import Parser


def markdown(notebook: dict[str, Any]) -> str:
    """The page of a notebook."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """One output of a cell: a picture or HTML if it has one, else text."""
    data = output.get("data", {"text/plain": output.get("text", [])})
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            return "````{raw} html\n" + "".join(data[kind]) + "\n````"
    return "````text\n" + "".join(data["text/plain"]).rstrip() + "\n````"


class NotebookParser(Parser):
    """Parses a notebook as the Markdown that it stands for."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Called by docutils with the JSON of a notebook."""
        super().parse(markdown(json.loads(inputstring)), document)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
