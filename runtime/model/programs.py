"""The step graphs of a network: one for each shape of its inputs, made on first use.

All use the same parameters, which stay where the first graph holds them. A step of
another graph that wants other words of a weight gets them before it computes.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from synth.runtime.grid.boxes import shape
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.methods import asks_gradients, with_method
from synth.runtime.model.step_graph import StepGraph
from synth.runtime.model.undisturbed import undisturbed
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.unsupported import plain_copies

MOST = 8  # step graphs that are kept; beyond, the one that was used longest ago goes
INWARD = ", with gradients of inputs"
Shapes = dict[str, tuple[int, ...]]  # by the name of an input


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
    ) -> StepGraph:
        """The step graph of a model on "meta".

        first: of the same network. partitions: of the tensors that the network has,
        where the model was changed; None for another shape. input_gradient: whether it
        makes the gradients of inputs, though `first` makes none. All ranks of all
        replicas call this. Raises `ValueError` where there is none.
        """


class Programs:
    """The step graphs of one network and of its copies.

    first: for the shapes that the network was planned for. template: the user's model
    on "meta". plan: makes the graph for other inputs from it; None to refuse them.
    words: that were received in graphs which are no more kept. method: that is called;
    "" for the model's forward. methods: step graphs of other methods, by their names.
    """

    def __init__(
        self,
        first: StepGraph,
        template: nn.Module,
        plan: Plan | None,
        words: int = 0,
        method: str = "",
    ) -> None:
        self.first, self.template, self.plan = first, template, plan
        self.others: OrderedDict[tuple[Any, ...], StepGraph] = OrderedDict()
        self.words, self.method = words, method
        self.methods: dict[str, list[Programs]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Programs:
        """The same: copies of a network compute with the same steps."""
        return self

    def __iter__(self) -> Iterator[StepGraph]:
        methods = (each for found in self.methods.values() for each in found)
        return chain((self.first, *self.others.values()), *methods)

    def of(self, batches: Mapping[str, torch.Tensor], network: nn.Module) -> StepGraph:
        """The step graph for these inputs: whole, partitioned, or a rank's own parts.

        Raises `ValueError` where there is none, and `RuntimeError` on all ranks if they
        are given other shapes.
        """
        first, shapes = self.first, {n: tuple(b.shape) for n, b in batches.items()}
        inward = self._lacks_gradient(batches.values())
        if self._other(shapes) and self._are_whole(batches):
            return self._of_shapes(shapes, network, inward)
        if inward:
            return self._of_shapes(_shapes(first), network, inward)
        return first  # which takes parts, and refuses what does not fit

    def of_method(
        self, name: str, args: Any, kwargs: Mapping[str, Any], network: nn.Module
    ) -> Programs:
        """The step graphs of another method of the model, planned on its first call.

        They use the parameters where `first` holds them. Raises `ValueError` where
        there is no plan, and `RuntimeError` on all ranks if they call another method or
        give other arguments.
        """
        known, first = self.methods.setdefault(name, []), self.first
        for each in known:
            if each.first.arguments.takes(args, kwargs):
                return each
        inward = asks_gradients(args, kwargs) and not first.inference
        if self.plan is None:
            raise ValueError(f"{name}() has no plan; call the network")
        inputs = Inputs.called(args, kwargs)
        what = f"{name}() with {inputs}{INWARD if inward else ''}"
        first.ranks.require_all(f"the first call of {what}")
        template = with_method(self.template, name)
        _follow(template, network)
        made = self._made(template, inputs, _device(network), None, inward)
        made.buckets.sums = first.buckets.sums
        known.append(Programs(made, template, self.plan, method=name))
        if len(known) > MOST:
            old = known.pop(0)
            self.words += old.received()
        return known[-1]

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
        planned, inward = _shapes(self.first), self.plan is not None
        inward &= input_gradient and not self.first.makes_input_gradient
        if given is None:
            given = planned
        if not isinstance(given, Mapping):
            given = {next(iter(planned)): given}
        shapes = {**planned, **{name: tuple(each) for name, each in given.items()}}
        if shapes == planned and not inward:
            return self.first
        if shapes.keys() != planned.keys() or self.plan is None:
            raise ValueError(f"no plan for {_text(shapes)}; the inputs are {planned}")
        return self._of_shapes(shapes, network, inward)

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

    def _of_shapes(
        self, shapes: Shapes, network: nn.Module, inward: bool = False
    ) -> StepGraph:
        """inward: whether gradients of inputs are asked for, which `first` lacks."""
        first = self.first
        key = inward, *shapes.items()
        if key not in self.others:
            what = f"{_text(shapes)}{INWARD if inward else ''}"
            first.ranks.require_all(f"the first forward pass with {what}")
            made = self._planned(shapes, network, inward)
            made.buckets.sums = first.buckets.sums
            self.others[key] = made
            if len(self.others) >= MOST:
                _, old = self.others.popitem(last=False)
                self.words += _received(old)
        self.others.move_to_end(key)
        return self.others[key]

    def require_alone(self, program: StepGraph) -> None:
        """Raise `ValueError` if gradients of another graph wait to be summed."""
        for each in self:
            if each is not program and any(b.kept for b in each.buckets.buckets):
                raise ValueError(
                    "gradients of batches of another shape, or of another method, wait"
                    " for their sum; make the last pass outside of no_sync() with a"
                    " batch of that shape and that method, or leave no_sync() away"
                )

    def anew(self, model: nn.Module, what: str) -> Programs:
        """The step graphs of a model that was changed, for the first shape.

        model: with the partitioned tensors of the network, and plain ones that are new.
        what: was changed. All ranks of all replicas call this.
        Raises `ValueError` where there is no plan.
        """
        first = self.first
        if self.plan is None:
            raise ValueError(f"{what}; this network cannot be planned anew")
        if any(b.kept for each in self for b in each.buckets.buckets):
            raise ValueError(
                f"{what}, but gradients wait for their sum; change the network after a"
                " backward pass outside of no_sync()"
            )
        template = emptied(model)
        tensors = (model.named_parameters, model.named_buffers)
        partitions = {
            name: values._partition
            for each in tensors
            for name, values in each()
            if isinstance(values, PartitionedTensor)
        }
        made = self._made(template, first.arguments.inputs, _device(model), partitions)
        made.forwards, made.buckets.sums = first.forwards, first.buckets.sums
        return Programs(made, template, self.plan, self.received())

    @contextmanager
    def later(self) -> Iterator[None]:
        """Backward passes in here only accumulate, in all graphs."""
        before = self.first.buckets.sums
        self._set_sums(False)
        try:
            yield
        finally:
            self._set_sums(before)

    def received(self) -> int:
        """Words that this rank received, between layers and in them."""
        gone = (each.words for found in self.methods.values() for each in found)
        return self.words + sum(gone) + sum(_received(each) for each in self)

    def suffix(self, program: StepGraph) -> str:
        """What tells the passes of a graph from those of the others, in messages."""
        called = f" of {self.method}()" if self.method else ""
        if program is self.first:
            return called
        made = program.makes_input_gradient and not self.first.makes_input_gradient
        return f"{called} with {_text(_shapes(program))}{INWARD if made else ''}"

    def _set_sums(self, sums: bool) -> None:
        for each in self:
            each.buckets.sums = sums

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

    def _lacks_gradient(self, given: Iterable[torch.Tensor]) -> bool:
        """Whether inputs ask for gradients that the first graph does not make."""
        first = self.first
        able = self.plan is not None and torch.is_grad_enabled()
        if not able or first.inference or first.makes_input_gradient:
            return False
        return any(each.requires_grad for each in given)

    def _planned(
        self, shapes: Shapes, network: nn.Module, inward: bool = False
    ) -> StepGraph:
        _follow(self.template, network)
        arguments = self.first.arguments
        given = [
            shapes[name]
            if spec.dtype is None
            else torch.empty(shapes[name], dtype=spec.dtype, device="meta")
            for name, spec in zip(arguments.names, arguments.specs, strict=True)
        ]
        args, kwargs = arguments.filled(given)  # type: ignore[arg-type]
        inputs = Inputs(*args, **kwargs)
        return self._made(self.template, inputs, _device(network), None, inward)

    def _made(
        self,
        template: nn.Module,
        inputs: Inputs,
        here: torch.device,
        partitions: Mapping[str, Partition] | None,
        inward: bool = False,
    ) -> StepGraph:
        """What the plan makes, as `parallelize` is called; it runs in all modes."""
        assert self.plan is not None
        with undisturbed(here):
            return self.plan(template, inputs, self.first, here, partitions, inward)


def emptied(model: nn.Module) -> nn.Module:
    """A copy of a model on "meta", without values."""
    memo: dict[int, Any] = plain_copies(model)
    for values in (*model.parameters(), *model.buffers()):
        if isinstance(values, PartitionedTensor):
            empty = torch.empty(values.shape, dtype=values.dtype, device="meta")
        else:
            empty = torch.empty_like(values, device="meta", requires_grad=False)
        if isinstance(values, nn.Parameter):
            empty = nn.Parameter(empty, values.requires_grad)
        memo[id(values)] = empty
    return copy.deepcopy(model, memo)


def _follow(template: nn.Module, network: nn.Module) -> None:
    """Let the template train, and need gradients, as the network now does."""
    modules = dict(network.named_modules())
    for name, module in template.named_modules():
        if name in modules:
            module.training = modules[name].training
    trained = dict(network.named_parameters())
    for name, values in template.named_parameters():
        if name in trained:
            values.requires_grad_(trained[name].requires_grad)
            if values.dtype != trained[name].dtype:
                values.data = values.data.to(trained[name].dtype)
    held = dict(network.named_buffers())
    for name, buffer in template.named_buffers():
        if name in held and buffer.dtype != held[name].dtype:
            buffer.data = buffer.data.to(held[name].dtype)


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


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
