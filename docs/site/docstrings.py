"""Docstrings of synth as reStructuredText.

The docstrings are plain text: paragraphs, `names` in single backticks, indented examples, and arguments as
"name: text" with indented further lines. Nothing in them is markup, so every other character is escaped.
"""

from __future__ import annotations

import re

ARGUMENT = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.*)")
BULLET = re.compile(r"[-*] (.*)")


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText."""
    out: list[str] = []
    for block in _blocks(lines):
        if all(line.startswith("    ") for line in block):
            out += ["::", "", *block, ""]
            continue
        for kind, text in _items(block):
            if kind == "argument":
                names, _, meaning = text.partition(": ")
                out += [f"``{names}``", f"    {escaped(meaning)}", ""]
            else:
                out += [f"- {escaped(text)}" if kind == "bullet" else escaped(text), ""]
    return out


def _blocks(lines: list[str]) -> list[list[str]]:
    """Runs of lines that are not blank; an example keeps its blank lines."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line.rstrip())
        elif blocks[-1]:
            blocks.append([])
    joined: list[list[str]] = []
    for block in filter(None, blocks):
        examples = [
            bool(each) and all(line.startswith("    ") for line in each) for each in (*joined[-1:], block)
        ]
        if len(examples) == 2 and all(examples):
            joined[-1] += ["", *block]
        else:
            joined.append(block)
    return joined


def _items(block: list[str]) -> list[tuple[str, str]]:
    """(kind, text in one line) of the paragraphs, bullets and arguments of a block."""
    items: list[tuple[str, str]] = []
    starts = [line for line in block if not line.startswith(" ")]
    listed = all(ARGUMENT.match(line) for line in starts)  # else a sentence that begins with "name:"
    for line in block:
        if bullet := BULLET.match(line.strip()):
            items.append(("bullet", bullet[1]))
        elif listed and ARGUMENT.match(line):
            items.append(("argument", line))
        elif items and (items[-1][0] == "text" or line.startswith(" ")):
            items[-1] = (items[-1][0], f"{items[-1][1]} {line.strip()}")
        else:
            items.append(("text", line.strip()))
    return items


def escaped(text: str) -> str:
    """A line of text in which backticks alone are markup."""
    parts = re.split(r"`+([^`]+)`+", text)
    for i, part in enumerate(parts):
        parts[i] = f"\\ ``{part.strip()}``\\ " if i % 2 else re.sub(r"([\\*|_`<>\[\]])", r"\\\1", part)
    joined = "".join(parts).strip()
    return f"\\{joined}" if re.match(r"(\W|\w+[.)] )", joined) and not joined.startswith("\\") else joined
