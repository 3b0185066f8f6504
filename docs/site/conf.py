"""Sphinx: `make docs` builds all pages of the repository into build/site, with warnings as errors.

The root of the sources is the repository, so that links between pages are the same here and in a checkout.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

project = "synth"
author = "the synth maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "public_names", "notebook_pages"]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/notebooks/*.ipynb",
    "*.md",
    "examples/README.md",
    "benchmarks/results/*.md",
]
exclude_patterns = [
    ".*",
    "build",
    "dist",
    "synth",
    "runtime",
    "codegen",
    "tests",
    "mutants",
    "artifact",
    "*.egg-info",
]
myst_heading_anchors = 4
highlight_language = "text"  # of indented blocks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
default_role = "code"
html_theme = "furo"
html_title = "synth"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


NUMBER = re.compile(r"[-+<>≤≥]? ?\d[\d ]*[\d.,]*(e-?\d+)?( ?(%|ms|s|µs|[KMG]i?B))?|-")
START = '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">synth</a>'


def mark_numbers(app: Any, doctree: Any, docname: str) -> None:
    """Cells of tables that are numbers stand at the right, and so do the heads of their columns."""
    for group in doctree.findall(nodes.tgroup):
        rows = [list(row.findall(nodes.entry)) for row in group.findall(nodes.row)]
        heads = [cell for row in group.findall(nodes.thead) for cell in row.findall(nodes.entry)]
        for place, head in enumerate(heads):
            cells = [row[place] for row in rows if len(row) == len(heads) and row[place] is not head]
            filled = [cell for cell in cells if cell.astext().strip()]
            numbers = [cell for cell in filled if NUMBER.fullmatch(cell.astext().strip())]
            if filled and 2 * len(numbers) > len(filled):
                for cell in [head, *numbers]:
                    cell["classes"].append("number")


def write_start(app: Any, exception: Exception | None) -> None:
    """The site begins at `index.html`, too."""
    if exception is None and app.builder.name == "html":
        (Path(app.outdir) / "index.html").write_text(START.format("docs/index.html"), encoding="utf-8")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_config_value("synth_root", str(HERE.parents[1]), "env")
    app.connect("doctree-resolved", mark_numbers)
    app.connect("build-finished", write_start)
