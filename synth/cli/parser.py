"""Parsers of commands: messages of one line, examples in each help, remedies for mistyped words."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from synth.base.errors import UsageError
from synth.base.similar_names import nearest

EXAMPLES = "examples:\n"


class Help(argparse.HelpFormatter):
    """Breaks paragraphs at the width of the terminal, but keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return "\n".join(indent + line for line in text.splitlines())
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line and name the command's help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, **options})

    given: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does; it remembers the words for `error`."""
        self.given = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises `UsageError`; a word that is no choice gets the nearest choice.

        An option that the command does not have is told before one that is missing.
        """
        if message.startswith("the following arguments are required"):
            unknown = [word for word in self.given if word.startswith("--") and not self._knows(word)]
            if unknown:
                self.refuse_rest(unknown[:1])
        wrong = re.match(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        near = nearest(_name(wrong[2]), re.findall(r"[^\s,']+", wrong[3])) if wrong else ""
        raise UsageError(f"{message}{near}; see {self.prog} --help")

    def _knows(self, word: str) -> bool:
        """Whether a word is an option of the command, or the beginning of one."""
        return word == "--" or any(flag.startswith(_name(word)) for flag in self._option_string_actions)

    def refuse_rest(self, rest: Sequence[str]) -> NoReturn:
        """Raises `UsageError` for words that nothing takes."""
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        near = next(filter(None, (nearest(_name(word), flags) for word in rest if word.startswith("-"))), "")
        raise UsageError(f"unrecognized arguments: {' '.join(rest)}{near}; see {self.prog} --help")


def _name(word: str) -> str:
    """A word without the value behind an `=`."""
    return word.partition("=")[0]


def declare(
    subparsers: Any, name: str, summary: str, *examples: str, description: str | None = None
) -> Parser:
    """A command with its help: what it does, its flags, and lines that can be typed.

    description: by default the summary as a sentence.
    """
    command: Parser = subparsers.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=EXAMPLES + "".join(f"  synth {name} {each}".rstrip() + "\n" for each in examples),
    )
    command.set_defaults(parser=command)
    command.add_argument("-q", "--quiet", action="store_true", help="no notes and no progress on stderr")
    command.add_argument("-v", "--verbose", action="store_true", help="say on stderr what is done")
    return command
