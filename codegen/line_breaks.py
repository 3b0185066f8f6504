"""Line breaks as `ruff format` sets them, so that templates write one statement per line."""

from __future__ import annotations

from textwrap import wrap

WIDTH = 88
CLOSES = {"(": ")", "[": "]", "{": "}"}


def fit(text: str) -> str:
    """The text with every long line broken: comments between words, calls at their last bracket.

    The arguments of a call stand on one line, or each on its own.
    """
    return "".join(_broken(line) + "\n" for line in text.splitlines())


def _broken(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    if len(line) > WIDTH and line.startswith(f"{indent}# "):
        begin = f"{indent}# "
        return "\n".join(wrap(line, WIDTH, initial_indent="", subsequent_indent=begin))
    if len(line) <= WIDTH or not line.endswith((")", "]")):
        return line
    opened, commas = _last_bracket(line)
    inside = line[opened + 1 : -1]
    if len(indent) + 4 + len(inside) <= WIDTH:
        return f"{line[: opened + 1]}\n{indent}    {inside}\n{indent}{line[-1]}"
    ends = [*commas, len(line) - 1]
    starts = [opened + 1, *(comma + 1 for comma in commas)]
    arguments = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    rows = "".join(f"{indent}    {argument},\n" for argument in arguments)
    return f"{line[: opened + 1]}\n{rows}{indent}{line[-1]}"


def _last_bracket(line: str) -> tuple[int, list[int]]:
    """Where the bracket opens that the end of a line closes, and the commas directly inside it."""
    opened: list[tuple[int, list[int]]] = []
    quote, last = "", (0, list[int]())
    for place, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in CLOSES:
            opened.append((place, []))
        elif character in CLOSES.values():
            last = opened.pop()
        elif character == "," and opened:
            opened[-1][1].append(place)
    return last
