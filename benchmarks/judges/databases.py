"""Samples of torch's databases of modules and operators: what is called, with which arguments."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

MOST = 60  # samples that are looked at
UNDEFINED = re.compile(r"(new_)?empty(_|$)")  # what gives memory as it is
OF_SHAPE = re.compile(r"new_|\w+_like$")  # what reads no values of its operand
Target = Callable[..., Any]


@dataclass(frozen=True)
class Sample:
    """A call: `make()(*args, **kwargs)`. forms: of an operator, by the way in which it is called.

    reads: whether it reads the values of its operands.
    """

    forms: dict[str, Callable[[], Target]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: bool = True


@lru_cache
def infos(base: str) -> dict[str, Any]:
    """The entries of a database by their names."""
    if base == "modules":
        from torch.testing._internal.common_modules import module_db

        return {each.name: each for each in module_db}
    import torch.testing._internal.common_methods_invocations as operators
    import torch.testing._internal.opinfo.core as core

    def drawing(call: Target, *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    for module in (operators, core):  # which set the seed at each call: here they shall draw
        if hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = drawing  # type: ignore[attr-defined]
    return {
        each.name + (f".{each.variant_test_name}" if each.variant_test_name else ""): each
        for each in operators.op_db
    }


@lru_cache(8)
def samples(base: str, name: str, dtype: str) -> list[Sample]:
    """The first samples of an entry, the same in every process. [] where it has none in a dtype.

    Operators of integers alone are called with int64 for float64. Those that give memory without values have
    no samples.
    """
    if UNDEFINED.match(name):
        return []
    seed(1)
    wanted = getattr(torch, dtype)
    info = infos("modules" if base == "modules" else "operators")[name]
    try:
        made = _of_module(info, wanted) if base == "modules" else _of_operator(info, wanted)
        return list(islice(made, MOST))
    except Exception:  # an entry that has no samples for a CPU, or needs a library that is not here
        return []


def seed(number: int) -> None:
    """Seed all generators that samples are drawn from."""
    import numpy as np

    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def _of_module(info: Any, dtype: torch.dtype) -> Iterator[Sample]:
    for training in (False, True):
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=False, training=training
        )
        for each in inputs:
            call = each.forward_input
            if call is None:
                continue
            given = each.constructor_input

            def make(given: Any = given, call: Any = call) -> Target:
                made: torch.nn.Module = info.module_cls(*given.args, **given.kwargs).to(dtype)
                if isinstance(made, LazyModuleMixin):  # which a first call completes
                    made(*call.args, **call.kwargs)
                return made

            yield Sample({"pos": make, "named": make}, tuple(call.args), dict(call.kwargs))


def _of_operator(info: Any, dtype: torch.dtype) -> Iterator[Sample]:
    known = info.supported_dtypes("cpu")
    if dtype not in known:
        dtype = next((each for each in (torch.int64, torch.bool) if each in known), dtype)
        if dtype not in known:
            return
    forms = {"pos": lambda: info.op}
    if info.method_variant is not None:
        forms["method"] = lambda: info.method_variant
    if info.inplace_variant is not None and info.supports_autograd:  # else gradients pass through it
        forms["in place"] = lambda: _on_a_copy(info.inplace_variant)
    for each in info.sample_inputs("cpu", dtype, requires_grad=False):
        yield Sample(forms, (each.input, *each.args), dict(each.kwargs), not OF_SHAPE.match(info.name))


def _on_a_copy(call: Target) -> Target:
    """An operator that changes its first argument, which is computed before."""

    def changed(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return call(first * 1, *args, **kwargs)

    return changed
