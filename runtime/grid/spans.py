"""Names in the traces of `torch.profiler`: computing, sending and waiting."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

PREFIX = "synth: "
_NONE = nullcontext()


def span(name: str) -> AbstractContextManager[object]:
    """A range of this name in the trace; nothing where no profiler runs."""
    if not _profiler_enabled():
        return _NONE
    return record_function(f"{PREFIX}{name}")


def mark(name: str) -> None:
    """A point of this name in the trace."""
    with span(name):
        pass
