"""YAML with source positions: every value of the tree has its line, its column and its original spelling.

YAML 1.1 reads `1:30` as 90, `1_000` as 1000, `010` as 8 and `yes` as true. Here a scalar keeps the text
that the user wrote. `Scalar.integer` accepts plain decimal digits only. The tree is built from parse
events, so depth, size and aliases are checked before a value is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from synth.base.errors import InputError
from synth.base.similar_names import nearest

MAX_BYTES = 1 << 20
MAX_DEPTH = 16  # collections within collections
MAX_VALUES = 20_000
MAX_DIGITS = 20
MOST_NAMED = 24  # known words that a message lists

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_UNWRITABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAB_INDENT = re.compile(r" *\t")

# spelling -> how YAML 1.1 would read it
_TRAPS: tuple[tuple[str, str], ...] = (
    (r"(?i:y|n|yes|no|true|false|on|off)", "which YAML reads as true or false; write an integer"),
    (r"[+-]?[0-9]+(:[0-9]+)+", "which YAML 1.1 reads in base 60; write the number in decimal digits"),
    (r"[+-]?[0-9][0-9_]*_[0-9_]*", "which has underscores in it; write the digits alone"),
    (r"[+-]?0[xX][0-9a-fA-F_]+", "which is hexadecimal; write it in decimal digits"),
    (r"[+-]?0[bB][01_]+", "which is binary; write it in decimal digits"),
    (r"[+-]?0[oO]?[0-9]+", "which YAML 1.1 reads in base 8; write it without the leading 0"),
    (r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?", "which is a fraction or a float; write it in decimal digits alone"),
)


def shown(text: str, longest: int = 40) -> str:
    """User text made safe for a message: one line, printable, cut at `longest` characters."""
    cut = text if len(text) <= longest else text[: longest - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean kernel?` if one of `known` is similar to `word`, else some of the known words."""
    names = list(known)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return nearest(word, names) or f"; known are {', '.join(names[:MOST_NAMED])}{more}"


KIND_OF_KEY = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "matmul", "einsum"), "layer"),
    **dict.fromkeys(("network", "layers"), "network"),
    **dict.fromkeys(("machine", "levels", "compute"), "machine"),
}
WHAT_TO_DO = {
    "layer": "plan it with `synth plan`",
    "network": "plan it with `synth plan`, run it with `synth.parallelize`",
    "machine": "name it after --machine",
}


def refuse_other_kinds(root: Mapping, wanted: str) -> None:
    """Raises `InputError` if a key says that the file holds another kind than `wanted`."""
    for key, (place, _) in root.entries.items():
        kind = KIND_OF_KEY.get(key, wanted)
        if kind != wanted:
            raise place.fault(f"the file holds a {kind}, not a {wanted}; {WHAT_TO_DO[kind]}")


@dataclass(frozen=True)
class Node:
    """A value of the file. `line` and `column` count from 1."""

    filename: str
    line: int
    column: int

    def fault(self, sentence: str) -> InputError:
        """An `InputError` at this position. The caller raises it."""
        return InputError(f"{self.filename}:{self.line}:{self.column}: {sentence}")


@dataclass(frozen=True)
class Scalar(Node):
    """A single value in the user's spelling."""

    text: str
    quoted: bool

    def integer(self, what: str) -> int:
        """The value as an integer. Raises `InputError` unless it is written in plain decimal digits.

        `what` names the value in the message.
        """
        digits = _INTEGER.fullmatch(self.text)
        if digits and not self.quoted:
            if len(self.text) > MAX_DIGITS:
                raise self.fault(f"{what} has {len(self.text)} digits; write an integer of at most 2**40")
            return int(self.text)
        if digits:
            raise self.fault(
                f"{what} is the text '{shown(self.text)}'; write {shown(self.text)} without quotes"
            )
        if self.text == "":
            raise self.fault(f"{what} is empty; write an integer")
        if not self.quoted and len(self.text) <= 40:  # the patterns backtrack
            for pattern, reading in _TRAPS:
                if re.fullmatch(pattern, self.text):
                    raise self.fault(f"{what} is {shown(self.text)}, {reading}")
        raise self.fault(f"{what} is {shown(self.text)}, not an integer; write it in decimal digits")

    def __str__(self) -> str:
        return shown(self.text) or "empty"


@dataclass(frozen=True)
class Listing(Node):
    """A YAML sequence."""

    items: tuple[Node, ...]

    def __str__(self) -> str:
        return "a list"


@dataclass(frozen=True)
class Mapping(Node):
    """A YAML mapping. No key occurs twice."""

    entries: dict[str, tuple[Scalar, Node]]  # key -> (the key with its position, the value)

    def __str__(self) -> str:
        return "a mapping"


def parse(text: str, filename: str) -> Node | None:
    """The one document in `text` as a tree, or None if the text has only comments.

    Raises `InputError` with the position for everything but plain YAML: bad syntax, a second document,
    a duplicate key, tags, anchors and aliases, and trees deeper or larger than an input file needs.
    """
    import yaml  # takes 15 ms, and users of the Python API may not need it

    filename = shown(filename, 4096)
    if len(text) > MAX_BYTES:
        raise InputError(f"{filename}: has more than {MAX_BYTES} characters; write a few lines of YAML")
    if bad := _UNWRITABLE.search(text):
        place = _place(filename, text, bad.start())
        raise place.fault(f"holds the unprintable character U+{ord(bad[0]):04X}; remove it")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(filename, yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        raise _syntax_fault(filename, text, error) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # escapes and versions out of range
        raise InputError(f"{filename}: is not valid YAML ({shown(str(error))}); write plain YAML") from error


def _place(filename: str, text: str, position: int) -> Node:
    line_start = text.rfind("\n", 0, position) + 1
    return Node(filename, text.count("\n", 0, position) + 1, position - line_start + 1)


def _syntax_fault(filename: str, text: str, error: Any) -> InputError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return InputError(f"{filename}: is not valid YAML ({shown(error.problem or '')}); write plain YAML")
    lines = text.split("\n")
    if mark.line < len(lines) and (tab := _TAB_INDENT.match(lines[mark.line])):
        return Node(filename, mark.line + 1, tab.end()).fault("a tab cannot indent in YAML; use spaces")
    problem = shown(error.problem or error.context or "syntax error", 100)
    place = Node(filename, mark.line + 1, mark.column + 1)
    return place.fault(f"not valid YAML ({problem}); fix the quotes, brackets, colons or indentation here")


class _Builder:
    """Builds the tree from parse events in one pass and refuses YAML that no input file needs."""

    def __init__(self, filename: str, events: Iterator[Any]) -> None:
        self.filename = filename
        self.events = events
        self.values = 0

    def document(self) -> Node | None:
        """The only document of the stream."""
        root: Node | None = None
        for event in self.events:
            if type(event).__name__ != "DocumentStartEvent":
                continue
            if root is not None:
                raise self.at(event).fault("a second document starts here; keep one document per file")
            root = self.node(next(self.events), 0)
        return root

    def at(self, event: Any) -> Node:
        return Node(self.filename, event.start_mark.line + 1, event.start_mark.column + 1)

    def node(self, event: Any, depth: int) -> Node:
        """The tree that starts with `event`."""
        self.refuse(event, depth)
        place = self.at(event)
        where = (place.filename, place.line, place.column)
        match type(event).__name__:
            case "ScalarEvent":
                return Scalar(*where, event.value, bool(event.style))
            case "SequenceStartEvent":
                return Listing(
                    *where, tuple(self.node(item, depth + 1) for item in self.until("SequenceEnd"))
                )
            case _:
                return Mapping(*where, self.entries(depth + 1))

    def until(self, end: str) -> Iterator[Any]:
        for event in self.events:
            if type(event).__name__ == end + "Event":
                return
            yield event

    def entries(self, depth: int) -> dict[str, tuple[Scalar, Node]]:
        entries: dict[str, tuple[Scalar, Node]] = {}
        for event in self.until("MappingEnd"):
            key = self.node(event, depth)
            if not isinstance(key, Scalar):
                raise key.fault(f"a key is {key}; keys are plain words")
            if key.text in entries:
                first = entries[key.text][0].line
                raise key.fault(f"{key} is given twice, first on line {first}; keep one of the two")
            entries[key.text] = key, self.node(next(self.events), depth)
        return entries

    def refuse(self, event: Any, depth: int) -> None:
        """Raise `InputError` for aliases, anchors, tags, depth and number of values."""
        self.values += 1
        place = self.at(event)
        if type(event).__name__ == "AliasEvent" or event.anchor is not None:
            mark = "*" if type(event).__name__ == "AliasEvent" else "&"
            anchor = mark + shown(event.anchor)
            raise place.fault(f"{anchor} is an anchor or alias, which is not allowed; write the value out")
        if event.tag is not None:
            tag = shown(event.tag.replace("tag:yaml.org,2002:", "!!"))
            raise place.fault(f"the tag {tag} is not allowed; write the plain value")
        if depth > MAX_DEPTH:
            raise place.fault(f"is nested deeper than {MAX_DEPTH} levels; input files are nearly flat")
        if self.values > MAX_VALUES:
            raise place.fault(f"is the value after the first {MAX_VALUES}; input files hold a few")
