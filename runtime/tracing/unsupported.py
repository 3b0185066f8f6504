"""Refuses what a model does that its graph does not show: hooks and tied values."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from synth.runtime.grid.user_lines import is_users, user_line
from synth.runtime.tracing.computed_weights import computes_weight
from synth.runtime.tracing.facts import tensors_within
from synth.runtime.tracing.plain_model import require_plain

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
# modules whose hooks keep nothing that is read after forward, or look at parameters of
# a model that has a network already
COLLECTORS = {
    "transformers.utils.output_capturing",
    "synth.runtime.model.live.optimizers",
}

GLOBAL_HOOKS = {
    "_global_forward_pre_hooks": "forward pre-hook",
    "_global_forward_hooks": "forward hook",
    "_global_backward_pre_hooks": "backward pre-hook",
    "_global_backward_hooks": "backward hook",
}


def check_global_hooks() -> None:
    """Raise `ValueError` for hooks of all modules, which the ranks would not call."""
    for name, kind in GLOBAL_HOOKS.items():
        if getattr(torch_modules, name):
            raise ValueError(
                f"there is a {kind} of all modules (torch.nn.modules.module), which the"
                " ranks would not call, because they compute parts of a module's"
                " output; remove it, or hook the network itself"
            )


def check_supported(model: nn.Module) -> None:
    """Raise `ValueError` for hooks and tied values, which the ranks would leave out.

    The same for a model that is wrapped, divided or not complete.
    """
    require_plain(model)
    check_global_hooks()
    for name, module in model.named_modules():
        for place, kind in HOOKS.items():
            _refuse_hook(
                f"the module {name}" if name else "the model", module, place, kind
            )
        if module.__module__.startswith("torch.nn") and "forward" in vars(module):
            raise ValueError(
                f"the module {name} has a forward that is not its class's, which the"
                " ranks would not run; make it a class of its own"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            _refuse_limit(f"the module {name}" if name else "the model", module)
    for name, values in model.named_parameters():
        for place, kind in OF_PARAMETERS.items():
            _refuse_hook(f"the parameter {name}", values, place, kind)
    _refuse_shared_memory(model)
    _refuse_other_names(model)


def has_no_effect(hook: Any) -> bool:
    """Whether ranks may leave a hook out, as the graph has what comes of it.

    Either it computes a weight from parameters; or it is of a library, and hands what a
    module gives to the forward that has asked for it, while the model is traced.
    """
    return computes_weight(hook) or getattr(hook, "__module__", "") in COLLECTORS


def plain_copies(model: nn.Module) -> dict[int, torch.Tensor]:
    """The computed tensors that modules have as attributes, by id, as constants.

    `copy.deepcopy` takes them as what is copied already: it refuses computed tensors.
    Such are computed weights, and what a forward pass has left, also in lists and in
    objects.
    """
    attributes = [vars(module) for module in model.modules()]
    return {
        id(each): each.detach()
        for each in tensors_within(attributes)
        if not each.is_leaf
    }


def _refuse_hook(what: str, holder: Any, place: str, kind: str) -> None:
    hooks = getattr(holder, place, None) or {}
    if not all(map(has_no_effect, hooks.values())):
        raise ValueError(
            f"{what} has {kind}, which the ranks would not run; remove it, or put what"
            " it does into a forward"
        )


def _refuse_limit(what: str, table: nn.Embedding | nn.EmbeddingBag) -> None:
    if table.max_norm is not None:
        raise ValueError(
            f"{what} has max_norm={table.max_norm}, by which forward changes its"
            " weight, which the ranks would not do; leave it out, and after each step"
            f" copy torch.renorm(weight, {table.norm_type}, 0, {table.max_norm}) into"
            " the weight"
        )


def _refuse_shared_memory(model: nn.Module) -> None:
    """Two tensors with the same memory would be trained, and saved, as two tensors.

    One tensor under two names is one tensor on the ranks, too.
    """
    names: dict[Any, tuple[str, int]] = {}
    for each in (model.named_parameters, model.named_buffers):
        for name, values in each(remove_duplicate=False):
            key = values.device, values.data_ptr() or id(values)
            first, one = names.setdefault(key, (name, id(values)))
            if one != id(values):
                raise ValueError(
                    f"{first} and {name} share their memory, but are two tensors, which"
                    " the ranks would train apart; give both modules one parameter"
                )


def _refuse_other_names(model: nn.Module) -> None:
    """Ranks know parameters, buffers and modules by the names that torch gives."""
    for walk in ("named_parameters", "named_buffers", "named_modules"):
        own, usual = getattr(model, walk)(), getattr(nn.Module, walk)(model)
        if [name for name, _ in own] != [name for name, _ in usual]:
            raise ValueError(
                f"{walk} of {type(model).__name__} leaves out or renames what the model"
                " has, which the ranks would not find; give that method another name"
            )


def refuse_transforms(function: Any) -> None:
    """Raise `ValueError` for gradients that a model takes, and for torch.func.

    The graph has the calls of a forward pass alone.
    """
    what = ""
    if function is torch.autograd.grad:
        what = "takes a gradient by torch.autograd.grad"
    elif torch._C._functorch.maybe_current_level() is not None:
        what = "is transformed by torch.func, such as vmap or grad"
    if what:
        raise ValueError(
            f"forward {what}, which the ranks' graph of calls does not show; write"
            " what it computes as operations with tensors, or do it outside of the"
            f" model with what the network gives{in_user_code()}"
        )


def in_user_code() -> str:
    """The line of the model that makes a call, as " (model.py:12)"; "" for none."""
    line = user_line()
    return "" if line is None else str(line)


def place_of(error: BaseException) -> str:
    """The line of the model that raised an error, likewise."""
    lines = reversed(traceback.extract_tb(error.__traceback__))
    found = (each for each in lines if is_users(each.filename))
    last = next(found, None)
    return f" ({Path(last.filename).name}:{last.lineno})" if last else ""


@contextmanager
def record_autograd_functions(record: Callable[..., Any]) -> Iterator[None]:
    """Record every `torch.autograd.Function` as one call while a model runs.

    record: takes a function and its arguments, calls it and returns its result. The
    calls inside its forward pass would not show its own backward pass.
    """
    original = vars(torch.autograd.Function)["apply"]
    active = list[Any]()  # functions that are running

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return original.__get__(None, cls)(*args, **kwargs)

        if active:
            return run(*args, **kwargs)
        if any(callable(each) for each in args):
            raise ValueError(
                f"forward calls {cls.__name__}, a torch.autograd.Function that takes a"
                " function, as reentrant checkpoints do; checkpoint with"
                " use_reentrant=False, or call that function itself"
            )
        run.__name__ = f"{cls.__name__}_apply"  # no name of a function of torch
        active.append(cls)
        try:
            return record(run, *args, **kwargs)
        finally:
            active.pop()

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]
