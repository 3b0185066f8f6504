"""What a model reads of autograd and of torch's switches in Python.

The graph is that of their state when the model was traced: under the autocast of the
call, with gradients of all but its inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from synth.runtime.grid.user_lines import is_users
from synth.runtime.tracing.composed import IN_MEMORY
from synth.runtime.tracing.unsupported import in_user_code

OF_LEAVES = "is_leaf", "grad_fn"
ATTRIBUTES = "requires_grad", *OF_LEAVES  # of tensors
OF_GRADIENTS = "is_grad_enabled", "requires_grad"
# of autocast -> the device, where no argument says it
OF_AUTOCAST = {
    **dict.fromkeys(("is_autocast_enabled", "get_autocast_gpu_dtype"), "cuda"),
    **dict.fromkeys(("is_autocast_cpu_enabled", "get_autocast_cpu_dtype"), "cpu"),
    "get_autocast_dtype": "",
}
OF_MEMORY = "is_contiguous", "stride", "storage_offset"
OF_RUNS = *OF_GRADIENTS, "is_contiguous"  # which count where another state shows
OF_ORDER = "is_contiguous", "as_strided"
NAMES = (
    *("is_grad_enabled", "is_inference_mode_enabled", "is_anomaly_enabled"),
    *("are_deterministic_algorithms_enabled", "get_float32_matmul_precision"),
    *("get_default_dtype", "initial_seed", *OF_AUTOCAST),
)
# (name, arguments) -> the state when it was read, and the line
Switches = dict[tuple[str, tuple[Any, ...]], tuple[Any, str]]
NOTED: ContextVar[Switches | None] = ContextVar("NOTED", default=None)  # of a run


@contextmanager
def read_by_users(found: Switches) -> Iterator[None]:
    """Note the switches that a user's code reads in here."""
    own = {name: getattr(torch, name) for name in NAMES}

    def noting(name: str) -> Any:
        def read(*args: Any) -> Any:
            state = own[name](*args)
            if is_users(sys._getframe(1).f_code.co_filename):
                found.setdefault((name, args), (state, in_user_code()))
            return state

        return read

    before = NOTED.set(found)
    for name in NAMES:
        setattr(torch, name, noting(name))
    try:
        yield
    finally:
        NOTED.reset(before)
        for name, function in own.items():
            setattr(torch, name, function)


def note_attribute(getter: Any, file: str) -> None:
    """Note that an attribute of a tensor was read in a file, if it is of autograd.

    Raises `ValueError` for gradients, which a graph does not follow.
    """
    if is_getter_of(getter, "grad") and is_users(file):
        raise ValueError(
            f"forward reads the gradient of a tensor{in_user_code()}, which is another"
            " one in each pass; read it outside, and give a number or tensor of it"
        )
    found = NOTED.get()
    if is_getter_of(getter, *ATTRIBUTES) and found is not None and is_users(file):
        found.setdefault(("requires_grad", ()), (None, in_user_code()))
        if is_getter_of(getter, *OF_LEAVES):
            found.setdefault(("is_leaf", ()), (True, in_user_code()))


def note_memory(word: str, file: str) -> bool:
    """Note that a file asks how words of a tensor lie in memory; whether it does."""
    found, asks = NOTED.get(), word in OF_MEMORY
    if not (asks or word in IN_MEMORY) or found is None or not is_users(file):
        return False
    name = "is_contiguous" if asks else "as_strided"
    found.setdefault((name, ()), (True, in_user_code()))
    return asks


def turned_memory(word: str, said: Any) -> Any:
    """What a tensor with its words in another order says; no number stays."""
    if word == "is_contiguous":
        return not said
    if isinstance(said, tuple):
        return tuple(turned_memory(word, each) for each in said)
    return 1 if said != 1 else 2


def is_getter_of(func: Any, *names: str) -> bool:
    """Whether a function reads an attribute of tensors by one of these names."""
    return getattr(getattr(func, "__self__", None), "__name__", "") in names


def require_same(
    switches: Mapping[Any, tuple[Any, str]],
    given: Sequence[torch.Tensor],
    network: nn.Module,
) -> None:
    """Raise `ValueError` for a switch that is not as it was when it was traced."""
    for (name, args), (state, line) in switches.items():
        what = f"torch.{name}({', '.join(map(repr, args))})"
        remedy = (
            "decide by self.training, an attribute or an argument, which a network"
            " follows"
        )
        if name == "requires_grad":
            inputs = any(each.requires_grad for each in given)
            now: Any = torch.is_grad_enabled(), inputs, trained(network)
            before: Any = True, False, state
            what = "requires_grad of tensors"
        elif name in OF_ORDER:
            now, before = all(map(lies_in_order, given)), state
            what, remedy = "how words lie in memory", "give contiguous() tensors"
        elif name == "is_leaf":
            now, before = all(each.is_leaf for each in given), state
            what, remedy = "whether tensors are leaves", "give tensors of detach()"
        else:
            now, before = getattr(torch, name)(*args), state
        if now != before:
            raise ValueError(
                f"forward reads {what}{line}, which is not what it was when the model"
                f" was traced, and would make other calls; {remedy}"
            )


def require_in_order(switches: Switches, model: nn.Module) -> None:
    """Raise `ValueError` for weights of which a layer gives words in another order.

    A trace does not have the order that a processor's kernel takes from its weights.
    """
    lines = [line for (name, _), (_, line) in switches.items() if name in OF_ORDER]
    for name, values in model.named_parameters() if lines else ():
        if values.dim() > 3 and not values.is_contiguous():
            raise ValueError(
                f"forward reads how words lie in memory{lines[0]}, and {name} is"
                " channels_last, of which a network does not know what layers give;"
                " call model.to(memory_format=torch.contiguous_format)"
            )


def lies_in_order(values: torch.Tensor) -> bool:
    """Whether a tensor is contiguous. Partitioned ones have no order as a whole."""
    return type(values) is not torch.Tensor or values.is_contiguous()


def take_autocast(switches: Switches, device: str) -> bool:
    """Take out what is read of autocast on a device; whether there is any.

    A call under another autocast is another call.
    """
    own = [
        (name, args)
        for name, args in switches
        if name in OF_AUTOCAST and (*args, OF_AUTOCAST[name])[0] == device
    ]
    for each in own:
        del switches[each]
    return bool(own)


def trained(model: nn.Module) -> frozenset[str]:
    """The names of the parameters that require gradients."""
    return frozenset(name for name, p in model.named_parameters() if p.requires_grad)
