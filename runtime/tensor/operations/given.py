"""Plain tensors and numbers that meet partitioned ones: the same on all ranks.

They are targets, masks, weights of classes, factors, learning rates. Each rank computes
its part with its own, so ranks with others would compute parts of different results.
What an operation is given is noted here; the ranks compare it when they next agree,
which they do before they add anything up.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from synth.runtime.tensor.operations.operands import short_name
from synth.runtime.tensor.partitioned import PartitionedTensor

NUMBERS = (int, float, complex)
OVERWRITTEN = ("copy_", "fill_", "zero_")  # what these are given first is not read
# of no value. Autograd calls them where somebody keeps a gradient, maybe on one rank
EMPTY = ("new_empty_strided", "new_empty", "empty_like")


def note_given(func: Any, args: Any, kwargs: Any) -> None:
    """Note all plain tensors and numbers among the arguments of an operation."""
    ranks, numbers = None, []
    for each in (*args, *kwargs.values()):  # optimizers call many operations
        kind = type(each)
        if kind is PartitionedTensor:
            if ranks is None or not ranks.compares:
                ranks = each._partition.ranks
        elif kind is float or kind is int:
            numbers.append(each)
        else:
            _note_all(func, args, kwargs)
            return
    if numbers and ranks is not None and ranks.compares:
        ranks.note(number_in(func), numbers)


@cache
def number_in(func: Any) -> str:
    """What numbers that an operation is given are, for messages."""
    return f"number in {short_name(func)}"


def _note_all(func: Any, args: Any, kwargs: Any) -> None:
    """The same, for plain tensors, lists and other arguments."""
    if short_name(func) in EMPTY:
        return
    ranks = None
    tensors: list[tuple[str, torch.Tensor]] = []
    numbers: list[int | float | complex] = []
    names, unread = argument_names(func)
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        if name == unread and not isinstance(value, PartitionedTensor):
            continue
        single: list[torch.Tensor] = []
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, PartitionedTensor):
                known = ranks is not None and ranks.compares
                ranks = ranks if known else each._partition.ranks
            elif isinstance(each, torch.Tensor):
                if each.dim():
                    tensors.append((name, each))
                else:
                    single.append(each)
            elif isinstance(each, NUMBERS):
                numbers.append(each)
        tensors += [(name, each) for each in stacked(single)]
    if ranks is None or not ranks.compares:
        return
    if not tensors and not numbers:
        return
    backward = torch._C._current_graph_task_id() != -1  # where gradients are given
    for name, tensor in tensors:
        what = "gradient in" if backward else f"argument {name} of"
        ranks.note(f"{what} {short_name(func)}", tensor)
    if numbers:
        ranks.note(number_in(func), numbers)


def stacked(words: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of one word, as optimizers give them in lists: few of more words."""
    if len(words) < 2:
        return words
    alike: dict[Any, list[torch.Tensor]] = {}
    for each in words:
        alike.setdefault((each.device, each.dtype), []).append(each)
    return [torch.stack(each) for each in alike.values()]


@cache
def argument_names(func: Any) -> tuple[tuple[str, ...], str | None]:
    """The names of an operation's arguments, in order; the one that is only written."""
    listed = func._schema.arguments
    names = tuple(str(each.name) for each in listed)
    if short_name(func) in OVERWRITTEN:
        return names, names[0]
    outs = (each for each in listed if each.alias_info and each.alias_info.is_write)
    return names, next((str(each.name) for each in outs if each.kwarg_only), None)
