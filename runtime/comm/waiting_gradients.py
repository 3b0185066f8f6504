"""Gradients of passes in `no_sync`, which wait for the sums of a later pass.

Until then autograd adds zeros to the gradient of a parameter, and the part of each rank
is kept here. Where the user sets a gradient to None, its part is dropped. Whatever else
is done with a gradient that is not complete is refused: its numbers would be others
than in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

LocalTensors = dict[str, torch.Tensor]  # key of a parameter -> its local tensor
AWAY = "make all passes outside of no_sync()"


class Waiting:
    """What one network adds up. Copies of it share its steps, but not this.

    parameters: of the network, by name. local: the own part of one.
    sums: whether passes sum now. graph: the steps whose passes wait.
    parts: key -> the part of this rank. leaves: their parameters.
    marks: key -> the gradient, and how often it and its parameter were changed, behind
    the last pass that waits; those of all parameters, alike on all ranks.
    """

    def __init__(
        self,
        parameters: Callable[[], Iterable[tuple[str, torch.Tensor]]] = lambda: (),
        local: Callable[[torch.Tensor], torch.Tensor] = lambda given: given,
    ) -> None:
        self.parameters, self.local = parameters, local
        self.sums, self.graph, self.task = True, None, -1
        self.parts: LocalTensors = {}
        self.leaves: LocalTensors = {}
        self.marks: dict[str, tuple[Any, ...]] = {}
        self.fresh: LocalTensors = {}  # parts of the backward pass that runs
        self.taken = set[str]()  # keys of the parts that are in its sums

    def keep(self, key: str, part: torch.Tensor, node: Any) -> None:
        """Let a part of the backward pass that runs wait. node: to which it goes.

        Raises `ValueError` where no gradient of a parameter is added up.
        """
        try:
            leaf = added_to(node)
        except LookupError as error:
            raise ValueError(
                f"gradients {error} cannot wait in no_sync(); {AWAY}"
            ) from None
        if leaf is not None:
            self.fresh[key] = self.fresh[key] + part if key in self.fresh else part
            self.leaves[key] = leaf

    def take(self, key: str, node: Any = None) -> torch.Tensor | None:
        """The part of a key for the sums of the pass that runs; None for none.

        node: to which the sum goes; None for the gradient of the parameter.
        """
        if key not in self.parts or key in self.taken:
            return None
        with suppress(LookupError):
            if node is None or added_to(node) is not None:
                self.taken.add(key)
                return self.parts[key]
        return None

    def waits(self) -> bool:
        """Whether gradients wait that the user has not dropped."""
        self._changed()
        return bool(self.marks)

    def begin(self, graph: Any, finish: Callable[[Waiting], None]) -> None:
        """Before the backward pass of some steps, on all ranks. finish: sums what is
        left behind it.

        Raises `ValueError` for what was done with gradients that wait.
        """
        task = torch._C._current_graph_task_id()
        if task == self.task and self.graph is graph:
            return
        first, self.task = task != self.task, task
        if first:
            self.fresh, self.taken = {}, set()
            changed = self._changed()
            if changed:
                raise ValueError(
                    f"the gradient of {changed} waits for its sum since a pass in"
                    " no_sync(), but it or the parameter was changed; set it to None as"
                    " zero_grad() does, make a backward pass outside of no_sync()"
                    f" before, or {AWAY}"
                )
            if self.marks or not self.sums:
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: self._end(finish))
        if self.sums:
            return
        if self.graph not in (None, graph) and (self.marks or not first):
            raise ValueError(OTHER)
        self.graph = graph
        for key, values in self.parameters():
            hooks: Any = values
            if hooks._backward_hooks or hooks._post_accumulate_grad_hooks:
                raise ValueError(
                    f"{key} has a hook, which would see a gradient without its sum in"
                    f" no_sync(); {AWAY}"
                )

    def _end(self, finish: Callable[[Waiting], None]) -> None:
        if self.sums:
            finish(self)
            self.parts, self.leaves, self.marks, self.graph = {}, {}, {}, None
            return
        for key, part in self.fresh.items():
            self.parts[key] = self.parts[key] + part if key in self.parts else part
        given = ((key, each) for key, each in self.parameters())
        self.marks = {key: self._mark(e) for key, e in given if e.grad is not None}

    def _changed(self) -> str:
        """Drop what the user has dropped. Returns the first key of a gradient that was
        changed, or whose parameter was; "" for none.
        """
        for key, values in self.parameters() if self.marks else ():
            if key not in self.marks or self._is_same(key, values):
                continue
            if values.grad is not None:
                return key
            del self.marks[key]
            self.parts.pop(key, None)
        return ""

    def _mark(self, values: torch.Tensor) -> tuple[Any, ...]:
        grad = values.grad
        assert grad is not None
        return TensorWeakRef(grad), self._counts(grad), self._counts(values)

    def _is_same(self, key: str, values: torch.Tensor) -> bool:
        found, *counts = self.marks[key]
        grad = values.grad
        if grad is None or found() is not grad:
            return False
        return counts == [self._counts(grad), self._counts(values)]

    def _counts(self, values: torch.Tensor) -> tuple[int, int]:
        return values._version, self.local(values)._version


OTHER = (
    "gradients of batches of another shape, or of another call, wait for their sum;"
    " make the last pass outside of no_sync() with a batch of that shape and that call,"
    " or leave no_sync() away"
)


def added_to(node: Any) -> torch.Tensor | None:
    """The parameter to whose gradient the backward pass that runs adds what goes to a
    node of autograd; None where it adds nothing.

    Raises `LookupError` where that goes elsewhere.
    """
    while not hasattr(node, "variable"):
        nodes = [] if node is None else [each for each, _ in node.next_functions]
        if len(nodes) != 1:
            raise LookupError("of computed weights")
        (node,) = nodes
    try:
        added: bool = torch._C._will_engine_execute_node(node)
    except RuntimeError:
        raise LookupError("of torch.autograd.grad()") from None
    leaf: torch.Tensor = node.variable
    return leaf if added else None
