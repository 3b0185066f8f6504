"""The most words that the tensors of a program hold at once: every storage counts once, while it lives.

What a kernel takes from the system for itself is no tensor. Neither is the operand that tells a gradient a
shape: nothing touches its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from synth.codegen.lower import lower
from synth.codegen.render import render
from synth.planning.plan import Plan
from synth.runtime.grid.boxes import shape
from synth.runtime.grid.process_grid import At
from synth.runtime.kernels import frame, routines
from synth.runtime.kernels.context import Context


class LiveStorages(TorchDispatchMode):
    """Sees the operands and the results of all that torch calls. `peak`: bytes at most."""

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.untouched: dict[int, StorageWeakRef] = {}
        self.peak = 0
        self._add(given)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self._add((args, kwargs, made))
        return made

    def _add(self, tensors: Any) -> None:
        for known in (self.live, self.untouched):
            for key, kept in list(known.items()):
                if (kept[0] if isinstance(kept, tuple) else kept).expired():  # type: ignore[no-untyped-call]
                    del known[key]
        for each in tree_leaves(tensors):
            if isinstance(each, torch.Tensor) and each.layout == torch.strided:
                storage = each.untyped_storage()
                weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self.live.setdefault(storage._cdata, (weak, storage.nbytes()))
        held = sum(size for key, (_, size) in self.live.items() if key not in self.untouched)
        self.peak = max(self.peak, held)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what runs here; operands that only tell a shape do not count."""
        told = routines.shape_only

        def shape_only(*like: Any, **formatted: bool) -> torch.Tensor:
            peak, operand = self.peak, told(*like, **formatted)
            storage = operand.untyped_storage()
            self.untouched[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self.peak = peak
            return operand

        with mock.patch.object(routines, "shape_only", shape_only), self:
            yield


def program_of(plan: Plan) -> dict[str, Any]:
    """The names that the emitted program of a plan defines."""
    program: dict[str, Any] = {"__name__": "program"}
    exec(compile(render(plan), "program.py", "exec"), program)
    return program


def most_words(plan: Plan, program: dict[str, Any], at: At, groups: Any, context: Context) -> float:
    """The words that a rank holds at most in two runs of a program, with the shards that it is given.

    The second run finds the buffers that the first one kept; a program with a limit keeps none.
    """
    given = []
    for operand in lower(plan, "", described=False).operands:
        owned = program[operand.owned](at)
        shard = torch.zeros(shape(owned), dtype=program["DTYPE"])
        if operand.carried:
            zeros = [frame.explicit_zeros(program["work"](at), program["WINDOWS"])] if operand.padded else []
            shard = context.rooms.keep(shard, owned, program[operand.carried](at), *zeros)
        given.append(shard)
    most = 0
    for _ in range(2):
        kept = [each for free in context.buffers.free.values() for each in free]
        live = LiveStorages(*given, *kept)
        with live.counting():
            program["run"](*given, at, groups, context)
        most = max(most, live.peak)
    return most / plan.nest.word_bytes
