"""The directive `public-names`: documents every name of `synth.__all__` from its docstring."""

from __future__ import annotations

import inspect
import re
from typing import Any

from docstrings import restructured
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

import synth

HIDDEN = {"__version__"}


def lines_of(name: str) -> list[str]:
    """The autodoc directive of a public name."""
    value = getattr(synth, name)
    if inspect.isclass(value) and issubclass(value, Exception):
        return [f".. autoexception:: synth.{name}", ""]
    if inspect.isclass(value):
        return [f".. autoclass:: synth.{name}", "   :members:", ""]
    if callable(value):
        return [f".. autofunction:: synth.{name}", ""]
    return [f".. autodata:: synth.{name}", ""]


class PublicNames(Directive):
    """Functions, classes and errors, each by alphabet."""

    def run(self) -> list[nodes.Node]:
        kinds: dict[str, list[str]] = {"function": [], "class": [], "exception": [], "data": []}
        for name in sorted(set(synth.__all__) - HIDDEN):
            lines = lines_of(name)
            kinds[lines[0].split("::")[0].removeprefix(".. auto")] += lines
        found = nodes.section()
        found.document = self.state.document
        for kind, title in (
            ("function", "Functions"),
            ("class", "Classes"),
            ("exception", "Errors"),
            ("data", "Values"),
        ):
            if kinds[kind]:
                section = nodes.section(ids=[title.lower()], names=[title.lower()])
                section += nodes.title(text=title)
                self.state.nested_parse(StringList(kinds[kind], source="synth.__all__"), 0, section)
                found += section
        return list(found.children)


def on_ranks(
    _app: Any, _what: str, _name: str, value: Any, _options: object, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A signature in which `Network` is the torch module on ranks, and not `synth.Network`."""
    if not str(getattr(value, "__module__", "")).startswith(("synth.parallel", "synth.runtime")):
        return signature, result
    full = r"synth.runtime.model.network.Network"
    return tuple(text and re.sub(r"(?<![\w.])Network\b", full, text) for text in (signature, result))  # type: ignore[return-value]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("public-names", PublicNames)

    def process(
        _app: Any, _what: str, _name: str, _value: object, _options: object, lines: list[str]
    ) -> None:
        lines[:] = restructured(lines)

    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", on_ranks)
    return {"parallel_read_safe": True}
