"""Names in the traces of `torch.profiler`: computing, sending and waiting."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

PREFIX = "synth: "
_NONE = nullcontext()


def span(name: str) -> AbstractContextManager[object]:
    """A range of this name in the trace; nothing where no profiler runs."""
    autograd: Any = torch.autograd
    if not autograd._profiler_enabled():
        return _NONE
    return torch.profiler.record_function(f"{PREFIX}{name}")


def mark(name: str) -> None:
    """A point of this name in the trace."""
    with span(name):
        pass
