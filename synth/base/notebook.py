"""How a value shows itself in a notebook."""

from __future__ import annotations

import importlib
from typing import Any


def inline_html(value: object) -> str:
    """A fragment of HTML. The reports make it; they are built on the value's own module, hence the name."""
    page = importlib.import_module("synth.reports.html.inline")
    return str(page.inline(value))


def figure(value: object, *picture: str) -> Any:
    """A matplotlib figure of a study, or a picture of a plan: `strategies`, say."""
    drawing = importlib.import_module("synth.reports.plot")
    return drawing.plan_figure(value, *picture) if picture else drawing.sweep_figure(value)
