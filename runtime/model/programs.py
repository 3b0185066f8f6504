"""The step graphs of a network, by call: its method, its constants, and its mode.

Each is planned on first use. Those of one call, by shapes and by the gradients of
inputs, are `CallGraphs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from synth.runtime.grid.log import LOG
from synth.runtime.model.call_graphs import (
    INWARD,
    MOST,
    CallGraphs,
    Modes,
    Plan,
    graph_of,
    modes_of,
)
from synth.runtime.model.inference import asks_gradient
from synth.runtime.model.methods import with_method
from synth.runtime.model.step_graph import StepGraph, in_all
from synth.runtime.model.templates import emptied, follow_left, follow_network
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.inputs import Inputs, OtherCallError
from synth.runtime.tracing.left_values import every_left
from synth.runtime.tracing.modes import MODES
from synth.runtime.tracing.recorded import leaf_tensors

Called = tuple[CallGraphs, list[torch.Tensor]]  # with the tensors of a call


class Programs:
    """The step graphs of one network and of its copies.

    first: of `forward`, as the network was planned for it. template: the user's model
    on "meta". modes: of its modules when it was traced. plan: makes graphs for other
    inputs; None to refuse them. words: that were received in graphs which are no more
    kept.
    """

    def __init__(
        self,
        first: StepGraph,
        template: nn.Module,
        modes: Modes,
        plan: Plan | None,
        words: int = 0,
    ) -> None:
        self.template, self.plan, self.words = template, plan, words
        self.number = 0  # of the call that was planned last
        self.calls = [CallGraphs(first, template, modes, plan)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Programs:
        """The same: copies of a network compute with the same steps."""
        return self

    def __iter__(self) -> Iterator[StepGraph]:
        return (graph for call in self.calls for graph in call)

    @property
    def first(self) -> StepGraph:
        """The graph for which the network was planned."""
        return self.calls[0].first

    @property
    def settings(self) -> dict[str, set[str]]:
        """Module -> the attributes that all steps of all graphs read at each call."""
        return in_all(pair for graph in self for pair in graph.settings.items())

    def of_call(
        self, method: str, args: Any, kwargs: Mapping[str, Any], network: nn.Module
    ) -> Called:
        """The graphs of a call and its tensors; they are planned where it is new.

        method: that is called; "" for `forward`. Raises `ValueError` where there is no
        plan, and `RuntimeError` on all ranks if they make other calls.
        """
        if not method:
            try:
                given = self.first.arguments.read(args, kwargs)
            except OtherCallError as error:
                if self.plan is None or not leaf_tensors((args, kwargs)):
                    raise ValueError(str(error)) from None
            else:
                if self.first.takes_dtypes(given):
                    return self.forward(network), given
        for each in self.calls:
            if each.method == method and each.has_modes(network):
                found = each.first.arguments.taken(args, kwargs)
                if found is not None and each.first.takes_dtypes(found):
                    return each, found
        inputs = Inputs.called(args, kwargs)
        asked = asks_gradient(leaf_tensors((args, kwargs)))
        made = self._new_call(method, inputs, network, asked)
        return made, made.first.arguments.read(args, kwargs)

    def under(self, low: torch.dtype | None) -> CallGraphs:
        """The graphs of `forward` for autocast to a dtype, as it was planned for."""
        first = self.calls[0]
        if not first.first.attributes.dtypes:
            return first
        rest = (each for each in self.calls if each.method == first.method)
        same = (e for e in rest if e.first.arguments.inputs.autocast == low)
        return next(same, first)

    def forward(self, network: nn.Module) -> CallGraphs:
        """The graphs of `forward`, as it was planned for, in the modes of now."""
        inputs = self.first.arguments.inputs
        for each in self.calls:
            same = each.method == "" and each.first.arguments.inputs is inputs
            if same and each.has_modes(network):
                return each
        return self._new_call("", inputs, network, False)

    def _new_call(
        self, method: str, inputs: Inputs, network: nn.Module, gradients: bool
    ) -> CallGraphs:
        """Plan another call. It uses the parameters where the first graph holds them.

        gradients: whether those of inputs are asked for.
        """
        first = self.first
        if self.plan is None:
            called = f"{method}()" if method else f"forward with {inputs}"
            raise ValueError(f"{called} has no plan; call the network as it was made")
        inward = gradients and not first.inference
        what = f"{method or 'forward'}() with {inputs}{INWARD if inward else ''}"
        first.ranks.require_all(f"the first call of {what}")
        template = with_method(self.template, method) if method else self.template
        follow_network(template, network)
        left = (each for graph in self for each in every_left(graph.left))
        follow_left(template, getattr(network, "_shown", network), left)
        options = {"input_gradient": inward, "network": network}
        graph = graph_of(self.plan, template, inputs, first, network, **options)
        modes = modes_of(template)
        return self._kept(CallGraphs(graph, template, modes, self.plan, method))

    def _kept(self, made: CallGraphs) -> CallGraphs:
        """A new call, which is told from the others of its method."""
        alike = [each for each in self.calls if each.method == made.method]
        self.number += 1
        if alike:
            said = made.first.arguments.differences(alike[0].first.arguments)
            said = f" with {said}" if said else ""
            if made.first.modes:
                said += f" in {MODES[made.template.training]}"
            made.label = f", call {self.number}{said}"
            if made.first.ranks.reports:
                LOG.info("synth: %s() is planned%s", made.method or "forward", said)
        self.calls.append(made)
        if len(alike) >= MOST:
            old = alike[made.method == ""]  # the first of all stays
            self.calls.remove(old)
            self.words += old.received()
        return made

    def anew(self, model: nn.Module, what: str) -> Programs:
        """The step graphs of a model that was changed, for the first shape.

        model: with the partitioned tensors of the network, and plain ones that are new.
        what: was changed. All ranks of all replicas call this.
        Raises `ValueError` where there is no plan.
        """
        first = self.first
        if self.plan is None:
            raise ValueError(f"{what}; this network cannot be planned anew")
        template = emptied(model, every_left(first.left))
        tensors = (model.named_parameters, model.named_buffers)
        partitions = {
            name: values._partition
            for each in tensors
            for name, values in each()
            if isinstance(values, PartitionedTensor)
        }
        place = first.arguments.inputs, first, model
        made = graph_of(self.plan, template, *place, partitions=partitions)
        made.forwards = first.forwards
        modes = modes_of(template)
        return Programs(made, template, modes, self.plan, self.received())

    def received(self) -> int:
        """Words that this rank received, between layers and in them."""
        return self.words + sum(each.received() for each in self.calls)
