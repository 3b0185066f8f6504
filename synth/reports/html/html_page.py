"""The frame of all HTML reports: one file that contains its style and script and loads nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"


def render(name: str, data: object, **values: Any) -> str:
    """The page of `templates/NAME.html.j2`, with `data` as JSON for `templates/NAME.js`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def files(*names: str) -> Markup:
        found = [TEMPLATES / each for each in names]
        return Markup("\n".join(file.read_text(encoding="utf-8") for file in found if file.is_file()))

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    # the name of a layer must not start a tag inside <script>
    shown = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return environment.get_template(f"{name}.html.j2").render(
        style=files("report.css", *([] if name == "report" else [f"{name}.css"])),
        script=files("theme.js", f"{name}.js"),
        data=Markup(shown),
        **values,
    )
