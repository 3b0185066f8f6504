"""Functions of `torch.jit.script` and `torch.compile`, as their users wrote them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch


@contextmanager
def as_written() -> Iterator[None]:
    """Scripted and compiled functions run as Python in here, so their calls are seen.

    A function that was loaded from a file has no Python, and runs as it is.
    """
    kind: Any = torch.jit.ScriptFunction
    scripted = kind.__call__

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        written = getattr(function, "_torchdynamo_inline", None)
        if written is None:
            return scripted(function, *args, **kwargs)
        return written(*args, **kwargs)

    used = "torch._dynamo" in sys.modules  # else nothing is compiled
    stance: Any = torch.compiler.set_stance("force_eager") if used else nullcontext()
    kind.__call__ = call
    try:
        with stance:
            yield
    finally:
        kind.__call__ = scripted
