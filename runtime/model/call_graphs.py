"""The step graphs of a network for one call: one for each shape of its inputs.

All use the same parameters, which stay where the first graph of the network holds them.
A step of another graph that wants other words of a weight gets them before it computes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from synth.runtime.grid.boxes import shape
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.step_graph import StepGraph
from synth.runtime.model.templates import device_of, follow_network
from synth.runtime.model.undisturbed import undisturbed
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.inputs import Inputs

MOST = 8  # step graphs that are kept; beyond, the one that was used longest ago goes
INWARD = ", with gradients of inputs"
Shapes = dict[str, tuple[int, ...]]  # by the name of an input
Modes = dict[str, bool]  # by the name of a module: whether it trains


class Plan(Protocol):
    """Makes a step graph for other inputs, or of a model that was changed."""

    def __call__(
        self,
        template: nn.Module,
        inputs: Inputs,
        first: StepGraph,
        device: torch.device,
        partitions: Mapping[str, Partition] | None = None,
        input_gradient: bool = False,
        network: nn.Module | None = None,
    ) -> StepGraph:
        """The step graph of a model on "meta".

        first: of the same network. partitions: of the tensors that the network has,
        where the model was changed; None for another shape. input_gradient: whether it
        makes the gradients of inputs, though `first` makes none. network: where it is
        called otherwise than before; what it then computes may be compared first. All
        ranks of all replicas call this. Raises `ValueError` where there is none.
        """


def graph_of(
    plan: Plan,
    template: nn.Module,
    inputs: Inputs,
    first: StepGraph,
    placed: nn.Module,
    **options: Any,
) -> StepGraph:
    """What a plan makes on the device of a placed model, whose state stays as it is."""
    here = device_of(placed)
    with undisturbed(here):
        return plan(template, inputs, first, here, **options)


class CallGraphs:
    """The step graphs of one call of a network, and of its copies.

    A call is that of a method, with constants, in a mode where that decides the steps.

    first: for the shapes of the first such call. template: the user's model on "meta",
    with the method as its `forward`. modes: of its modules when it was traced. plan:
    makes the graph for other inputs from it; None to refuse them. method: that is
    called; "" for the model's `forward`. label: what tells the call from others of the
    same method. words: that were received in graphs which are no more kept.
    """

    def __init__(
        self,
        first: StepGraph,
        template: nn.Module,
        modes: Modes,
        plan: Plan | None,
        method: str = "",
        label: str = "",
    ) -> None:
        self.first, self.template, self.modes, self.plan = first, template, modes, plan
        self.method, self.label, self.words = method, label, 0
        self.others: OrderedDict[tuple[Any, ...], StepGraph] = OrderedDict()

    def __iter__(self) -> Iterator[StepGraph]:
        return iter((self.first, *self.others.values()))

    # -- which calls -------------------------------------------------------------------

    def has_modes(self, network: nn.Module) -> bool:
        """Whether the graphs are those of the modes that the modules now have."""
        return not self.refused(network)

    def refused(self, network: nn.Module) -> str:
        """Why they are not; "" where they are."""
        reasons = self.first.modes
        if not reasons:
            return ""
        now = modes_of(network)
        found = (
            mode
            for name, mode in now.items()
            if mode != self.modes.get(name, mode) and mode in reasons
        )
        mode = next(found, None)
        return "" if mode is None else reasons[mode]

    # -- by shapes ---------------------------------------------------------------------

    def of(self, batches: Mapping[str, torch.Tensor], network: nn.Module) -> StepGraph:
        """The step graph for these inputs: whole, partitioned, or a rank's own parts.

        Raises `ValueError` where there is none, and `RuntimeError` on all ranks if they
        are given other shapes.
        """
        first, shapes = self.first, {n: tuple(b.shape) for n, b in batches.items()}
        asked = self._asks_gradient(batches.values())
        if self._other(shapes) and self._are_whole(batches):
            return self._with_gradient(shapes, network, asked)
        if asked and not first.makes_input_gradient:
            return self._of_shapes(_shapes(first), network, inward=True)
        return first  # which takes parts, and refuses what does not fit

    def of_batch(self, samples: int, network: nn.Module) -> StepGraph:
        """The step graph for batches of another number of samples.

        All ranks of all replicas call this. Raises `ValueError` where there is none.
        """
        planned = _shapes(self.first)
        batch = next(iter(planned.values()))[0]
        if samples == batch:
            return self.first
        if self.plan is None:
            raise ValueError(
                f"the network is planned for batches of {batch} samples, not {samples};"
                " leave a smaller batch out by drop_last=True"
            )
        shapes = {
            name: (samples, *shape[1:]) if shape[:1] == (batch,) else shape
            for name, shape in planned.items()
        }
        return self._of_shapes(shapes, network)

    def of_shapes(
        self,
        given: Sequence[int] | Mapping[str, Sequence[int]] | None,
        network: nn.Module,
        input_gradient: bool = False,
    ) -> StepGraph:
        """The step graph for inputs of some shapes; those that are not given stay.

        input_gradient: whether it makes the gradients of inputs, too.
        All ranks of all replicas call this. Raises `ValueError` where there is none.
        """
        planned, asked = _shapes(self.first), input_gradient and self.plan is not None
        inward = asked and not self.first.makes_input_gradient
        if given is None:
            given = planned
        if not isinstance(given, Mapping):
            given = {next(iter(planned)): given}
        shapes = {**planned, **{name: tuple(each) for name, each in given.items()}}
        if shapes == planned and not inward:
            return self.first
        if shapes.keys() != planned.keys() or self.plan is None:
            raise ValueError(f"no plan for {_text(shapes)}; the inputs are {planned}")
        return self._with_gradient(shapes, network, asked)

    def known(self, given: Sequence[tuple[int, ...]]) -> StepGraph:
        """The step graph for inputs of some shapes, which has been made.

        Raises `ValueError` where there is none yet.
        """
        shapes = dict(zip(_shapes(self.first), given, strict=True))
        if shapes == _shapes(self.first):
            return self.first
        found = (self.others.get((each, *shapes.items())) for each in (False, True))
        made = next((each for each in found if each is not None), None)
        if made is None:
            raise ValueError(
                f"a compiled network has no plan for {_text(shapes)} yet; call the"
                " network once with this shape before it is compiled"
            )
        return made

    def _with_gradient(
        self, shapes: Shapes, network: nn.Module, asked: bool
    ) -> StepGraph:
        """The step graph for some shapes; asked: for gradients of inputs.

        Where rows are computed twice, the first graph makes them unasked, but others
        may not.
        """
        inward = asked and not self.first.makes_input_gradient
        found = self._of_shapes(shapes, network, inward)
        if asked and not found.makes_input_gradient:
            found = self._of_shapes(shapes, network, inward=True)
        return found

    def _of_shapes(
        self, shapes: Shapes, network: nn.Module, inward: bool = False
    ) -> StepGraph:
        """inward: whether gradients of inputs are asked for, which no graph makes."""
        first = self.first
        key = inward, *shapes.items()
        if key not in self.others:
            what = f"{_text(shapes)}{INWARD if inward else ''}"
            first.ranks.require_all(f"the first forward pass with {what}")
            self.others[key] = self._planned(shapes, network, inward)
            if len(self.others) >= MOST:
                _, old = self.others.popitem(last=False)
                self.words += _received(old)
        self.others.move_to_end(key)
        return self.others[key]

    def _planned(
        self, shapes: Shapes, network: nn.Module, inward: bool = False
    ) -> StepGraph:
        follow_network(self.template, network)
        arguments = self.first.arguments
        given = [
            shapes[name]
            if spec.dtype is None
            else torch.empty(shapes[name], dtype=spec.dtype, device="meta")
            for name, spec in zip(arguments.names, arguments.specs, strict=True)
        ]
        args, kwargs = arguments.filled(given)  # type: ignore[arg-type]
        assert self.plan is not None
        place = Inputs(*args, **kwargs), self.first, network
        return graph_of(self.plan, self.template, *place, input_gradient=inward)

    # -- what is given -----------------------------------------------------------------

    def _other(self, shapes: Shapes) -> bool:
        """Whether extents are others than planned, and may be planned."""
        planned = _shapes(self.first)
        if self.plan is None or shapes == planned:
            return False
        return all(len(shapes[name]) == len(each) for name, each in planned.items())

    def _are_whole(self, batches: Mapping[str, torch.Tensor]) -> bool:
        """Whether inputs of another shape are wholes, not the parts of each rank."""
        places, ranks = self.first.input_partitions, self.first.ranks
        given = (
            (name, batch)
            for name, batch in batches.items()
            if batch.shape != places[name].shape
            and not isinstance(batch, PartitionedTensor | DTensor)
        )
        plain = {name: batch.detach() for name, batch in given}
        if not plain:
            return True
        return ranks.same("a forward pass with another shape", *plain.values()) and any(
            bool(batch.any()) or not _is_part_of_all(batch, places[name])
            for name, batch in plain.items()
        )

    def _asks_gradient(self, given: Iterable[torch.Tensor]) -> bool:
        """Whether inputs ask for gradients, which a graph may be planned for."""
        able = self.plan is not None and torch.is_grad_enabled()
        if not able or self.first.inference:
            return False
        return any(each.requires_grad for each in given)

    # -- beside others -----------------------------------------------------------------

    def received(self) -> int:
        """Words that this rank received in these graphs, between layers and in them."""
        return self.words + sum(map(_received, self))

    def suffix(self, program: StepGraph) -> str:
        """What tells the passes of a graph from those of the others, in messages."""
        called = (f" of {self.method}()" if self.method else "") + self.label
        if program is self.first:
            return called
        inward = (key[0] for key, each in self.others.items() if each is program)
        return f"{called} with {_text(_shapes(program))}{INWARD if any(inward) else ''}"


def modes_of(model: nn.Module) -> Modes:
    """By the name of a module, whether it trains."""
    return {name: module.training for name, module in model.named_modules()}


def _is_part_of_all(batch: torch.Tensor, place: Partition) -> bool:
    """Whether a tensor has the shape of the part that each rank holds."""
    return all(shape(box) == tuple(batch.shape) for box in place.layout.boxes)


def _shapes(program: StepGraph) -> Shapes:
    return {name: tuple(at.shape) for name, at in program.input_partitions.items()}


def _received(program: StepGraph) -> int:
    layers = (m for m in program.modules() if isinstance(m, DistributedLayer))
    inside = sum(layer.traffic.received()["total"] for layer in layers)
    return inside + sum(program.context.traffic.steps.values())


def _text(shapes: Shapes) -> str:
    if len(shapes) == 1:
        return f"a batch of {next(iter(shapes.values()))}"
    return ", ".join(f"{name} of {shape}" for name, shape in shapes.items())
