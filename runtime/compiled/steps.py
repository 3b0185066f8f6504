"""The steps of a network in one graph, which AOTAutograd traces and Dynamo does not."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

_NUMBERS = itertools.count()  # never the same again: compiled code keeps them
PASSES: WeakValueDictionary[int, Pass] = WeakValueDictionary()


class Pass:
    """Something that is traced. run: from tensors to tensors."""

    def __init__(self, run: Callable[..., Sequence[torch.Tensor]]) -> None:
        self.run, self.number = run, next(_NUMBERS)
        PASSES[self.number] = self


def _traced(number: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(PASSES[number].run(*given))


def _called(number: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _traced(number, *given)


def compiled(made: Pass, **options: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The compiled pass.

    Each has a code object of its own: none is compiled again for another one. Its
    backward pass is traced without autocast, and may run again (`retain_graph=True`).
    """
    from torch._functorch import config as settings

    config: Any = settings
    compiler: Any = torch.compiler
    compiler.allow_in_graph(_traced)
    code = _called.__code__.replace()
    call: Any = types.FunctionType(code, globals(), f"pass_{made.number}")
    step: Any = torch.compile(call, fullgraph=True, dynamic=False, **options)

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with config.patch(backward_pass_autocast="off", donated_buffer=False):
            found: tuple[torch.Tensor, ...] = step(made.number, *given)
        own: Any = getattr(found[0].grad_fn, "_forward_cls", None)
        known = getattr(own, "metadata", None)
        if known is not None and known.bw_donated_idxs is None:
            known.bw_donated_idxs = []  # else torch takes None for some
        return found

    return run
