"""A progress bar on stderr if that is a terminal; nothing otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
