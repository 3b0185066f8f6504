"""What is done after a step of an optimizer; a compiled step leaves it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def after_step(look: Callable[[Any], None]) -> Callable[..., None]:
    """A hook of torch's optimizers."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            look(optimizer)

    return hook
