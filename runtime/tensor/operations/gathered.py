"""Operations without a rule for parts: every rank computes them from the whole.

The words of all partitioned operands then move to all ranks. The first rank warns of
it, once for each operation and line of the user. A network that was made with
`refuse=True` refuses such operations on what it gives.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, NoReturn

import torch
from torch.utils import _pytree

from synth.runtime.comm.layout import replicated
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.user_lines import user_line
from synth.runtime.tensor.operations.operands import (
    changed_by,
    on_wholes,
    short_name,
    to_whole,
    written,
)
from synth.runtime.tensor.operations.sampling import require_same_generators
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor


def gathered(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operation from the wholes of its operands.

    Its results are plain tensors, the same on all ranks. What would be a view is a
    replicated tensor that is known to be a copy. What it changes keeps its partition.

    Raises `NotImplementedError` for messages of torch.distributed, and for all that is
    gathered if the network refuses it; `RuntimeError` for another shape in place.
    """
    flat, _ = _pytree.tree_flatten((args, kwargs))
    parts = [each for each in flat if isinstance(each, PartitionedTensor)]
    name = short_name(func)
    if func.namespace in ("c10d", "_c10d_functional"):
        refuse_message(name, parts[0])
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return func.decompose(*args, **kwargs)  # in inference mode torch does not
    if torch.Tag.inplace_view in func.tags:
        raise RuntimeError(
            f"{name} would change the shape of a partitioned tensor of"
            f" {tuple(parts[0].shape)} in place; call {name.rstrip('_')}"
        )
    moved = sum(each.numel() for each in parts if not each._partition.replicated)
    if moved:
        _tell(name, moved, parts[0]._partition.ranks)
    if torch.Tag.nondeterministic_seeded in func.tags:
        generator = kwargs.get("generator")
        require_same_generators(parts[0]._partition, generator, parts[0].device)
    if written(func):
        return _changed(func, args, kwargs)
    made = on_wholes(func, args, kwargs)
    return _copies(made, parts[0]._partition) if is_view(func) else made


@cache
def is_view(func: Any) -> bool:
    """Whether results of an operation share the memory of an operand."""
    shared = (each.alias_info for each in func._schema.returns)
    return any(each is not None and not each.is_write for each in shared)


def _copies(made: Any, like: Partition) -> Any:
    """Wholes in place of views, on all ranks."""
    if isinstance(made, list | tuple):
        return type(made)(_copies(each, like) for each in made)
    place = Partition(replicated(made.shape, like.ranks))
    return PartitionedTensor(made, place).copied()


def _changed(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation that changes operands: the whole is changed, then cut again."""
    given, spec = _pytree.tree_flatten((args, kwargs))
    wholes = [to_whole(each) for each in given]
    new_args, new_kwargs = _pytree.tree_unflatten(wholes, spec)
    made = func(*new_args, **new_kwargs)
    changed = {id(each) for each in changed_by(func, new_args, new_kwargs)}
    back = {}
    for one, whole in zip(given, wholes, strict=True):
        if isinstance(one, PartitionedTensor) and id(whole) in changed:
            one._local.copy_(one._partition.cut(whole))
            back[id(whole)] = one
    return _pytree.tree_map(lambda each: back.get(id(each), each), made)


def _tell(name: str, words: int, ranks: Ranks) -> None:
    """Warn, on the first rank, of the first such call of a line; or refuse it."""
    line = user_line()
    where = "" if line is None else str(line)
    if ranks.refuses_gathers:
        raise NotImplementedError(
            f"{name} has no rule for parts of a tensor{where}, and the network was made"
            " with refuse=True; call full_tensor() first"
        )
    if not ranks.reports:
        return
    message = (
        f"{name} has no rule for parts of a tensor: {words} words are gathered on every"
        f" rank{where}; call full_tensor() to say that this is meant"
    )
    path, number, warned, _ = line or ("synth", 1, None, 0)
    warnings.warn_explicit(message, UserWarning, path, number, registry=warned)


def refuse_message(name: str, given: torch.Tensor) -> NoReturn:
    """Raise `NotImplementedError` for a message of torch.distributed."""
    raise NotImplementedError(
        f"{name} of torch.distributed is not defined on a partitioned tensor of"
        f" {tuple(given.shape)}: its ranks already hold one global tensor; call"
        " full_tensor(), or use to_local() for the own part"
    )


def tensors_of(made: Any) -> Iterator[PartitionedTensor]:
    """The partitioned tensors among results."""
    for each in made if isinstance(made, list | tuple) else [made]:
        if isinstance(each, PartitionedTensor):
            yield each
