"""Sphinx: `make docs` builds all pages of the repository into build/site, with warnings as errors.

The root of the sources is the repository, so that links between pages are the same here and in a checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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
html_copy_source = False
html_show_sphinx = False


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_config_value("synth_root", str(HERE.parents[1]), "env")
