"""How a value shows itself in a notebook."""

from __future__ import annotations

import importlib


def inline_html(value: object) -> str:
    """A fragment of HTML. The reports make it; they are built on the value's own module, hence the name."""
    page = importlib.import_module("synth.reports.html.inline")
    return str(page.inline(value))
