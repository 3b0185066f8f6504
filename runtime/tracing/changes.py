"""What a model changes in place while it is recorded: as a new tensor, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from synth.runtime.tracing.recorded import function_name, tensors_in
from synth.runtime.tracing.slice_writes import is_added_in_place, with_slices
from synth.runtime.tracing.unsupported import in_user_code

# functions that change running statistics, which torch does not count: the places of
# these and of the mode among their arguments
STATISTICS: Mapping[Any, tuple[int, int, int]] = MappingProxyType(
    {
        torch.nn.functional.batch_norm: (1, 2, 5),
        torch.batch_norm: (3, 4, 5),
        torch.native_batch_norm: (3, 4, 5),
    }
)
NAMES = "running_mean", "running_var", "training"


class Changes:
    """The changes in place that a `Recorder` sees."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.unseen: dict[fx.Node, bool] = {}  # whether a call is behind one of `get`

    def set_slices(self, values: torch.Tensor, index: Any, given: Any) -> bool:
        """Record words that are set by an index as a new tensor; whether that is so."""
        if not any(map(self.recorder.computed, tensors_in((values, index, given)))):
            return False
        if self.recorder.computed(values):
            if self._shares_unseen(values):
                return False
            self._check_gradient(values, torch.Tensor.__setitem__)
        elif id(values) in self.recorder.stored or self._is_shared(values):
            return False
        node, version = self.recorder.nodes.get(id(values), (None, 0))
        added = (
            values._version == version + 1
            and isinstance(given, torch.Tensor)
            and node is not None
            and self.recorder.nodes.get(id(given), (node, 0))[1] == values._version
            and is_added_in_place(node, index, self.recorder.nodes[id(given)][0])
        )
        before = torch.empty_like(values)
        self.recorder.keep_alive(before)
        old = node if added and node is not None else self.recorder.node(values)
        self.recorder.nodes[id(before)] = old, before._version
        with self.recorder:
            made = with_slices(before, index, given)
        if made is None:
            return False
        after = self.recorder.node(made)  # which may be a view of what is written next
        place, own, words = self.recorder.on_meta((values, index, given))
        place[own] = words
        self.recorder.nodes[id(values)] = after, values._version
        return True

    def check(
        self,
        values: torch.Tensor,
        func: Any,
        results: list[torch.Tensor],
        computed: bool,
    ) -> None:
        """Refuse a change in place that the graph does not show."""
        returned = any(values is each for each in results)
        if not self.recorder.computed(values):
            # parameters change by training only; buffers and other tensors by what
            # does not depend on the input, or as statistics of a layer
            kept = values.untyped_storage()._cdata in self.recorder.trained
            stored = id(values) in self.recorder.stored
            statistics = stored and bool(results) and not returned
            alone = returned and not stored and not self._is_shared(values)
            if kept or (computed and not statistics and not alone):
                self.refuse(values, func)
            return
        if not returned or self._shares_unseen(values):
            self.refuse(values, func)
        self._check_gradient(values, func)

    def check_statistics(self, func: Any, args: Any, kwargs: Any) -> None:
        """Refuse running statistics that are no buffers, which a function changes."""
        places = zip(NAMES, STATISTICS.get(func, ()), strict=False)
        given = [args[n] if n < len(args) else kwargs.get(w) for w, n in places]
        for values in given[:2] if any(given[2:]) else ():
            if values is not None and id(values) not in self.recorder.stored:
                self.refuse(values, func)

    def _check_gradient(self, values: torch.Tensor, func: Any) -> None:
        """Refuse a change that autograd does not see: the gradient passes it by."""
        node, _ = self.recorder.nodes.get(id(values), (None, 0))
        seen = node is not None and node.meta.get("grad", True)
        seen = seen and not self.recorder.turned
        if seen and not torch.is_grad_enabled():
            self.refuse(values, func, " without gradients")

    def _shares_unseen(self, values: torch.Tensor) -> bool:
        """Whether another tensor would change without a count, as `x` by `x.data`."""
        node, passed = self.recorder.nodes[id(values)][0], list[fx.Node]()
        while node.all_input_nodes and node not in self.unseen:
            passed.append(node)
            if function_name(node.target) == "get":
                self.unseen[node] = True
                break
            node = node.all_input_nodes[0]
        found = self.unseen.get(node, False)
        self.unseen.update(dict.fromkeys(passed, found))
        return found and self._is_shared(values)

    def _is_shared(self, values: torch.Tensor) -> bool:
        """Whether other tensors have the memory of one."""
        return values._base is not None or any(
            each is not values for each in self.recorder.alive_beside(values)
        )

    def refuse(self, values: torch.Tensor, func: Any, how: str = "") -> None:
        """Raise `ValueError` for a change of a tensor by a function."""
        trained = self.recorder.trained.get(values.untyped_storage()._cdata)
        what = self.recorder.stored.get(id(values)) or trained
        what = what or f"a tensor of {tuple(values.shape)}"
        remedy = "compute a new tensor, as by torch.where or torch.cat"
        if trained:
            remedy = "compute with a new tensor, or change it between calls"
        if function_name(func) == "copy":
            remedy = f"assign to a slice, as x[a:b] = y, or {remedy}"
        if values.untyped_storage()._cdata in self.recorder.buffers:
            remedy = "give the whole buffer its new values, as by copy_"
        if func in STATISTICS or func is torch.nn.functional.instance_norm:
            remedy = "give it whole buffers of the model as running statistics"
        raise ValueError(
            f"forward changes {what} in place by {function_name(func)}{how}, which the"
            f" ranks would not do; {remedy}{in_user_code()}"
        )
