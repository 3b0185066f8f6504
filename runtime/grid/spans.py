"""Names in the traces of `torch.profiler`: computing, sending and waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

PREFIX = "synth: "
_NONE = nullcontext()


class Waited:
    """Seconds for which this process has waited for words of other ranks."""

    seconds = 0.0


def span(name: str) -> AbstractContextManager[object]:
    """A range of this name in the trace; nothing where no profiler runs."""
    autograd: Any = torch.autograd
    if not autograd._profiler_enabled():
        return _NONE
    return torch.profiler.record_function(f"{PREFIX}{name}")


@contextmanager
def waiting(name: str) -> Iterator[None]:
    """A range of this name in the trace, whose seconds are waited.

    Those of a range in another one count once.
    """
    before, begin = Waited.seconds, time.perf_counter()
    try:
        with span(name):
            yield
    finally:
        Waited.seconds = before + time.perf_counter() - begin


def mark(name: str) -> None:
    """A point of this name in the trace."""
    with span(name):
        pass
