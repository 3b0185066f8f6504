"""Builds the steps of a network: one for each call of a traced model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.comm.layout import Layout, even, replicated
from synth.runtime.comm.redistribute import Count
from synth.runtime.kernels.context import Context
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.held import Held
from synth.runtime.layers.planned_layer import (
    PlannedBoxes,
    PlannedLayer,
    PlannedLinearOnMap,
    RedistributedStep,
)
from synth.runtime.layers.step import GatheredStep, Step
from synth.runtime.model.calls import Call, node_shape
from synth.runtime.model.operators import Kind, Operator, Operators
from synth.runtime.model.outputs import Structure
from synth.runtime.model.step_choice import choose_step, hold
from synth.runtime.tensor.partition import Partition

Make = Callable[[str, nn.Module, tuple[int, ...], Context], DistributedLayer | None]
# what keeps the shape of its input and computes it where it lies
IN_PLACE: tuple[Kind, ...] = (
    *("elementwise", "same", "prelu", "dropout"),
    *("batchnorm", "groupnorm", "instancenorm"),
)


class Builder:
    """The steps of a network, and what connects them.

    make: the planned layer for a name, a module, the shape of its input and the
        context of the network, or None.
    refuse: raise `ValueError` for a call that could only be computed from the whole.
    places: node -> the boxes of all ranks before and after a layer without weights.

    steps: node -> its step. calls: (node, the nodes that it reads), in order.
    layouts: node -> the layout of its result. detached: nodes without gradients.
    owners: module of the model -> its first node. held: node -> (key in the model's
    state, where the step uses it). partitions: key -> who holds which words, None for a
    counter. modes: mode -> why it cannot be entered.
    regions: mode -> node -> the checkpoints that it is in, the outermost first.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: fx.Graph,
        make: Make,
        context: Context,
        places: Mapping[str, PlannedBoxes],
        refuse: bool,
    ) -> None:
        self.make, self.context, self.places = make, context, places
        self.refuse, self.training = refuse, model.training
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.modules = dict(model.named_modules())
        tensors: dict[str, torch.Tensor] = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        self.operators = Operators(graph, self.modules, tensors)
        self.ready: dict[str, DistributedLayer | None] = {}
        self.steps: dict[str, Step] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.layouts: dict[str, Layout] = {}
        self.detached: set[str] = set()
        self.owners: dict[str, str] = {}
        self.held: dict[str, list[tuple[str, Held]]] = {}
        self.partitions: dict[str, Partition | None] = {}
        self.modes: dict[bool, str] = {}
        self.regions: dict[bool | None, dict[str, tuple[int, ...]]] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.structure = Structure(None)
        for node in graph.nodes:
            self._read(node)

    def _read(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self.inputs.append(node.name)
                self.layouts[node.name] = self._input_layout(node)
            case "output":
                given: Any = node.args[0]
                self.outputs = [each.name for each in given]
                self.structure = node.meta["structure"]
                self.modes = node.meta.get("refused", {})
            case "call_module" | "call_function":
                self._add(node)

    def _add(self, node: fx.Node) -> None:
        call = self.operators.call(node)
        operator = self.operators.operator(call)
        layouts = {each: self.layouts[each.name] for each in call.inputs}
        step = self._step(call, operator, layouts)
        if not isinstance(step, GatheredStep):  # which has no tensors
            step.to(self.device)
        self._set_mode(step, node)
        self.steps[node.name] = step
        step.autocast = node.meta.get("autocast", ())
        if not node.meta.get("grad", True):
            self.detached.add(node.name)
        for mode, region in node.meta.get("regions", {}).items():
            self.regions.setdefault(mode, {})[node.name] = region
        self.calls.append((node.name, tuple(each.name for each in call.inputs)))
        self.layouts[node.name] = step.layout
        self._add_held(call, step)
        if call.module is not None:
            self.owners.setdefault(str(node.target), node.name)

    def _add_held(self, call: Call, step: Step) -> None:
        """The keys by which the user's model knows what a step uses."""
        keys = {call.state_key(name): name for name, _ in call.parameters.values()}
        prefix = f"{call.node.target}." if call.module and call.node.target else ""
        self.held[call.node.name] = found = []
        for own, held in step.held_tensors().items():
            key = keys.get(own, f"{prefix}{own}")
            found.append((key, held))
            first = self.partitions.setdefault(key, held.partition)
            if first != held.partition:
                raise ValueError(
                    f"{key} is used by two calls that hold other words of it:"
                    f" {held.partition} and {first}; give each call its own"
                )

    def _step(
        self, call: Call, operator: Operator, layouts: Mapping[fx.Node, Layout]
    ) -> Step:
        """The planned layer, the step of the operator, or one that gathers."""
        step: Step | None = None
        place = self.places.get(call.node.name)
        if operator.kind == "layer":
            step = self._planned(call, operator, layouts)
        elif place is not None:
            step = self._placed(call, operator, layouts, place)
        elif operator.kind == "cat":
            wanted = self._wanted_by_reader(call.node)
            step = choose_step(
                call,
                operator,
                layouts,
                self._counter,
                self.context.process_groups,
                wanted,
            )
        else:
            step = choose_step(
                call, operator, layouts, self._counter, self.context.process_groups
            )
        return step or self._gathered(call, layouts)

    def _planned(
        self, call: Call, operator: Operator, layouts: Mapping[fx.Node, Layout]
    ) -> Step | None:
        """A planned layer with the parameters of its module."""
        ((_, source),) = layouts.items()
        made = self._made(call, operator, source.whole)
        if made is None:
            return None
        del self.ready[str(call.node.target)]
        given = dict(operator.module.named_parameters())
        shapes = {name: each.shape for name, each in given.items()}
        flat = len(source.whole) > 2 and len(call.out) == 2
        kind = PlannedLinearOnMap if flat else PlannedLayer
        return kind(made, source, self._counter(call.name), shapes)

    def _made(
        self, call: Call, operator: Operator, whole: tuple[int, ...]
    ) -> DistributedLayer | None:
        """The distributed layer of a call, made once."""
        name = str(call.node.target)
        if name not in self.ready:
            self.ready[name] = self.make(name, operator.module, whole, self.context)
        return self.ready[name]

    def _placed(
        self,
        call: Call,
        operator: Operator,
        layouts: Mapping[fx.Node, Layout],
        place: PlannedBoxes,
    ) -> Step | None:
        """A pooling or resizing in the boxes that the plan gives it."""
        ((node, source),) = layouts.items()
        wanted = source.with_boxes(source.whole, place.before)
        step = choose_step(
            call,
            operator,
            {node: wanted},
            self._halo_counter,
            self.context.process_groups,
        )
        if step is None:
            return None
        set_boxes: Any = getattr(step, "set_boxes", None)
        if set_boxes is not None:
            set_boxes(place.after)
        return RedistributedStep(step, source, wanted, self._counter(call.name))

    def _gathered(self, call: Call, layouts: Mapping[fx.Node, Layout]) -> Step:
        """A step for which every rank computes the whole."""
        name = call.node.name if call.module is None else str(call.node.target)
        if self.refuse:
            what = name if call.module is not None else call.function.__name__
            raise ValueError(f"{what} ({name}) cannot be computed on shards")
        if self.context.ranks.reports:
            print(f"{name}: gathered, every rank computes it", file=sys.stderr)
        inputs, count = list(layouts.values()), self._counter(call.name)
        if call.module is not None:
            return GatheredStep(_unused, inputs, call.out, count, module=call.module)
        ranks, given = self.context.ranks, call.parameters.values()
        whole = {name: replicated(values.shape, ranks) for name, values in given}
        held = hold(call, whole, count)
        return GatheredStep(call.filled(), inputs, call.out, count, held)

    # -- layouts -------------------------------------------------------------------

    def _input_layout(self, node: fx.Node) -> Layout:
        """Where the first planned layer owns its input, or an even layout."""
        whole = node_shape(node)
        first = next((user for user in node.users if user.op != "output"), None)
        wanted = None if first is None else self._wanted_by(first, whole)
        return wanted or even(whole, self.context.ranks)

    def _wanted_by_reader(self, node: fx.Node) -> Layout | None:
        """Where the one layer that reads a value wants it.

        Between the two there may be calls that compute a value where it lies. None
        where there is no such layer.
        """
        whole = node_shape(node)
        while len(node.users) == 1:
            (node,) = node.users
            place = self.places.get(node.name)
            if place is not None:
                return Layout(whole, place.before, self.context.ranks)
            if not node.op.startswith("call") or node_shape(node) != whole:
                return self._wanted_by(node, whole)
            call = self.operators.call(node)
            kind = self.operators.operator(call).kind
            if kind not in IN_PLACE or len(call.inputs) > 1:
                return self._wanted_by(node, whole)
        return None

    def _wanted_by(self, node: fx.Node, whole: tuple[int, ...]) -> Layout | None:
        """What a planned layer owns of its input; None where that is not all of it."""
        if node.op != "call_module":
            return None
        call = self.operators.call(node)
        operator = self.operators.operator(call)
        if operator.kind != "layer":
            return None
        made = self._made(call, operator, whole)
        if made is None or whole != made.input.whole:
            return None
        transposed = made.program.transposed_rows is not None  # it reads every row
        windows = () if transposed else tuple(made.program.windows.values())
        if any(w.size != n for w, n in zip(windows, whole[2:], strict=False)):
            return None
        return made.input.with_boxes(whole, made.input.boxes)

    # -- small parts ---------------------------------------------------------------

    def _set_mode(self, step: Step, node: fx.Node) -> None:
        """Training or evaluation, as the model's module is."""
        if node.op == "call_module":
            step.training = self.modules[str(node.target)].training
        else:
            step.training = node.meta.get("training", self.training)
        if not isinstance(step, GatheredStep):  # which has a copy of the module
            step.train(step.training)

    def _counter(self, name: str) -> Count:
        return self.context.counter("move", 0, name)

    def _halo_counter(self, name: str) -> Count:
        return self.context.counter("halo", 0, name)


def _unused(*values: Any) -> torch.Tensor:
    raise AssertionError(values)
