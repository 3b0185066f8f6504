"""Counts the words that the tensors of a rank hold while it computes, for comparison with planned memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.kernels import routines


class Held(TorchDispatchMode):
    """Counts the words of all live tensors, except free buffers of a pool, and what nothing touches."""

    def __init__(self, pool: BufferPool) -> None:
        super().__init__()
        self.pool = pool
        self.live: dict[int, int] = {}
        self.most = 0
        self.untouched: set[int] = set()
        self.told = routines.shape_only

    def shape_only(self, *like: Any, **formatted: bool) -> torch.Tensor:
        """The operand that tells a gradient a shape; its memory does not count."""
        most, found = self.most, self.told(*like, **formatted)
        memory = found.untyped_storage()
        self.untouched.add(memory._cdata)
        weakref.finalize(memory, self.untouched.discard, memory._cdata)
        self.most = most
        return found

    def note(self, tensor: Any) -> None:
        """Count the memory of a tensor once, until it is freed."""
        if type(tensor) is not torch.Tensor or not tensor.is_floating_point():
            return
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key not in self.live:
            self.live[key] = memory.nbytes() // tensor.element_size()
            weakref.finalize(memory, self.live.pop, key, None)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every call of torch."""
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result, *args):
            self.note(each)
        left = sum(len(buffer) for buffers in self.pool.free.values() for buffer in buffers)
        held = sum(words for key, words in self.live.items() if key not in self.untouched)
        self.most = max(self.most, held - left)
        return result


def telling(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, which says on its first call how many words it holds at most.

    The least of a few runs, as a thread of gloo may keep a message for a while after it came.
    """
    told = False

    def told_run(*args: Any) -> Any:
        nonlocal told
        if not told:
            told = True
            print(f"held {min(_held(run, args) for _ in range(3))} words", flush=True)
        return run(*args)

    return told_run


def _held(run: Callable[..., Any], args: tuple[Any, ...]) -> int:
    pool = args[-1].buffers  # of the context, the last argument of `run`
    pool.free.clear()
    held = Held(pool)
    with mock.patch.object(routines, "shape_only", held.shape_only), held:
        for each in args:
            held.note(each)
        run(*args)
    return held.most
