"""Where a command writes: results on stdout or in a file, notes on stderr.

`--quiet` leaves out notes and progress, `--verbose` tells more; errors are always told. A progress bar is
on stderr if that is a terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from synth.base.atomic_write import put

NARROWEST = 20  # columns


def show(text: str, path: str | None = None) -> None:
    """Writes a report to a file or stdout; on a narrow terminal, long lines are broken at spaces."""
    if path is None and sys.stdout is not None and sys.stdout.isatty():
        import shutil  # takes 10 ms

        text = folded(text, shutil.get_terminal_size().columns)
    put(text, path)


def tell(args: argparse.Namespace, found: Any, path: str | None = None) -> None:
    """Writes a result to a file or stdout: with `--json` as JSON, else as text."""
    if args.json:
        put(json_text(found.to_json()), path)
    else:
        show(f"{found}".removesuffix("\n") + "\n", path)


def json_text(data: Any) -> str:
    """JSON as the commands print it."""
    return json.dumps(data, indent=1) + "\n"


def folded(text: str, columns: int) -> str:
    """The text with no line longer than `columns`, if its words are not; the rest of a line is indented."""
    import textwrap

    wide = max(columns, NARROWEST)
    lines = []
    for line in text.split("\n"):
        if len(line) <= wide:
            lines.append(line)
            continue
        start = len(line) - len(line.lstrip())
        hang = " " * min(start + 4, wide // 2)
        lines += textwrap.wrap(
            line, wide, subsequent_indent=hang, break_on_hyphens=False, break_long_words=False
        )
    return "\n".join(lines)


def note(args: argparse.Namespace, text: str) -> None:
    """A sentence for people, unless `--quiet`."""
    if not args.quiet:
        print(f"synth: {text}", file=sys.stderr)


def detail(args: argparse.Namespace, text: str) -> None:
    """A sentence for `--verbose`."""
    if args.verbose and not args.quiet:
        print(f"synth: {text}", file=sys.stderr)


def wants_progress(args: argparse.Namespace) -> bool:
    """Whether progress is shown: on a terminal, or with `--verbose`; never with `--quiet`."""
    return not args.quiet and (args.verbose or sys.stderr.isatty())


@contextmanager
def bar(what: str, total: int, least: int = 1) -> Iterator[Callable[[], None]]:
    """Yields a function to call after each of `total` steps; draws on a terminal, from `least` steps on."""
    if total < least or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
