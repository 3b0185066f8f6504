"""Methods of the user's model other than `forward`, which the ranks run as well."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn


def planned_method(model: nn.Module, name: str) -> Callable[..., Any] | None:
    """The function of a method of the user's class; None for anything else."""
    found = inspect.getattr_static(type(model), name, None)
    known = name.startswith("__") or hasattr(nn.Module, name)
    return found if inspect.isfunction(found) and not known else None


def with_method(model: nn.Module, name: str) -> nn.Module:
    """The same model with a method in the place of its `forward`.

    What the method calls, `forward` among it, is that of the model.
    """
    kind = type(model)
    method, inside = getattr(kind, name), list[bool]()

    @functools.wraps(method)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if inside:
            return kind.forward(self, *args, **kwargs)
        inside.append(True)
        try:
            return method(self, *args, **kwargs)
        finally:
            inside.pop()

    made = copy.copy(model)
    names = {"forward": forward, "__module__": kind.__module__}
    made.__class__ = type(f"{kind.__name__}.{name}", (kind,), names)
    return made
