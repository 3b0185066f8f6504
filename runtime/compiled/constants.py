"""Tensors of known numbers, which steps keep from pass to pass."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch.utils import _python_dispatch


def real_tensors() -> AbstractContextManager[object]:
    """What is made in here is real, also where a compiler traces a pass."""
    disable: Any = _python_dispatch._disable_current_modes
    real: AbstractContextManager[object] = disable()
    return real
