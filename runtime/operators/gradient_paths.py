"""Which arguments of a call its result has a gradient by.

A loss has none by its labels, a comparison by nothing. torch knows: the call is made
once on tensors without values, and the graph that autograd records is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from synth.runtime.layers.steps.gathered_step import bound_flat_weights, empty_copy
from synth.runtime.operators.call import Call
from synth.runtime.rules.rule import is_trainable


def gradient_paths(call: Call) -> set[str] | None:
    """The nodes and keys of the arguments that may get a gradient from the result.

    None where torch does not make the call without values: then all of them may.
    """
    given = {each.name: _empty(each.meta["value"]) for each in call.inputs}
    held = {name: _empty(values) for name, values in call.parameters.values()}
    module = None if call.module is None else empty_copy(call.module)
    own = {} if module is None else dict(module.named_parameters())
    entries = call.entries()
    try:
        result = _made(call, module, [*given.values(), *held.values()])
    except Exception:  # whatever a function raises that looks at values
        return None
    leaves = {**given, **held, **{entries[name]: each for name, each in own.items()}}
    found = {id(each) for each in _leaves_behind(result)}
    return {name for name, values in leaves.items() if id(values) in found}


def _empty(like: torch.Tensor) -> torch.Tensor:
    """A tensor without values that asks for a gradient where it can."""
    made = torch.empty(like.shape, dtype=like.dtype, device="meta")
    return made.requires_grad_(is_trainable(made))


def _made(call: Call, module: nn.Module | None, leaves: list[torch.Tensor]) -> Any:
    """The result of the call on copies, which it may change in place."""
    run = call.filled(False, True, module)
    with torch.enable_grad():
        copies = [each.clone() for each in leaves]
        if module is None:
            return run(*copies)
        with bound_flat_weights(module):
            return run(*copies)


def _leaves_behind(result: torch.Tensor) -> Iterator[torch.Tensor]:
    """The leaves of the graph of autograd from which a tensor was computed."""
    left, seen = [result.grad_fn], set[Any]()
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        left += [each for each, _ in node.next_functions]
