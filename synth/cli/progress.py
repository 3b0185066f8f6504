"""A progress bar on stderr, where a person looks at it; silent where a program does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(what: str, total: int, worth: int = 1) -> Iterator[Callable[[], None]]:
    """Yields a function to call after each of `total` steps; draws only on a terminal."""
    if total < worth or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
