"""The one filter through which words of the user reach generated text."""

from __future__ import annotations

import shlex

from synth.base.errors import UsageError


def printable(text: str, what: str) -> str:
    """`text` itself. Raises `UsageError` when it would break a line or hide something."""
    if not text.isprintable():
        raise UsageError(
            f"{what} {text!r} has characters that cannot be printed; leave out line breaks and control codes"
        )
    return text


def in_docstring(text: str, what: str) -> str:
    """`text` as it stands between triple double quotes."""
    return printable(text, what).replace("\\", "\\\\").replace('"', '\\"')


def literal(text: str, what: str) -> str:
    """A string literal, quoted as `ruff format` quotes: with the quotes that need fewer escapes."""
    text = printable(text, what).replace("\\", "\\\\")
    quote = "'" if text.count('"') > text.count("'") else '"'
    return quote + text.replace(quote, "\\" + quote) + quote


def in_shell(text: str, what: str) -> str:
    """`text` as one word of a shell script."""
    return shlex.quote(printable(text, what))
