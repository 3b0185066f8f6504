"""What a model does that its graph does not show: refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

HOOKS = {
    "_forward_pre_hooks": "a forward pre-hook",
    "_forward_hooks": "a forward hook",
    "_backward_pre_hooks": "a backward pre-hook",
    "_backward_hooks": "a backward hook",
}
OF_PARAMETERS = {
    "_backward_hooks": "a gradient hook",
    "_post_accumulate_grad_hooks": "a hook after its gradient",
}


def judge(model: nn.Module) -> None:
    """Raise `ValueError` for what the ranks would leave out: hooks and tied values."""
    for name, module in model.named_modules():
        for place, kind in HOOKS.items():
            _hook(f"the module {name}" if name else "the model", module, place, kind)
        if module.__module__.startswith("torch.nn") and "forward" in vars(module):
            raise ValueError(
                f"the module {name} has a forward that is not its class's, which the"
                " ranks would not run; make it a class of its own"
            )
    for name, values in model.named_parameters():
        for place, kind in OF_PARAMETERS.items():
            _hook(f"the parameter {name}", values, place, kind)
    _tied(model)


def _hook(what: str, holder: Any, place: str, kind: str) -> None:
    if getattr(holder, place, None):
        raise ValueError(
            f"{what} has {kind}, which the ranks would not run; remove it, or put what"
            " it does into a forward"
        )


def _tied(model: nn.Module) -> None:
    """Two names of one tensor: it would be trained, and saved, as two."""
    names: dict[Any, str] = {}
    for each in (model.named_parameters, model.named_buffers):
        for name, values in each(remove_duplicate=False):
            key = values.device, values.data_ptr() or id(values)
            first = names.setdefault(key, name)
            if first != name:
                raise ValueError(
                    f"{first} and {name} are one tensor, which the ranks would train"
                    " as two; give each module its own"
                )


@contextmanager
def whole_functions(record: Callable[..., Any]) -> Iterator[None]:
    """Have every `torch.autograd.Function` recorded as one call while a model runs.

    record: takes a function and its arguments, calls it and gives what it gives. The
    calls in its forward pass would not show the backward pass that it has of its own.
    """
    right = vars(torch.autograd.Function)["apply"]
    within = list[Any]()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return right.__func__(cls, *args, **kwargs)

        if within:
            return run(*args, **kwargs)
        if any(callable(each) for each in args):
            raise ValueError(
                f"forward calls {cls.__name__}, a torch.autograd.Function that takes a"
                " function, as reentrant checkpoints do; call that function itself"
            )
        run.__name__ = f"{cls.__name__}_apply"  # no name of a function of torch
        within.append(cls)
        try:
            return record(run, *args, **kwargs)
        finally:
            within.pop()

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore
    try:
        yield
    finally:
        torch.autograd.Function.apply = right  # type: ignore[method-assign]
