"""The steps of a network and what connects them. Copies of a network share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from synth.runtime.comm.gradient_buckets import (
    Buckets,
    Shared,
    Sums,
)
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count
from synth.runtime.comm.ring import Ring
from synth.runtime.comm.waiting_gradients import LocalTensors, Waiting
from synth.runtime.grid.boxes import volume
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.spans import span
from synth.runtime.kernels.autocast import autocast_dtype
from synth.runtime.kernels.context import Context
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.finite_check import check_gradient, require_finite
from synth.runtime.layers.planned_layer import PlannedLayer
from synth.runtime.layers.steps.draws import Seeds
from synth.runtime.layers.steps.expression import part_of
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.homes import fetched, is_at_home, write_back
from synth.runtime.layers.steps.one_mode import InOneMode
from synth.runtime.layers.steps.step import Step
from synth.runtime.model.checks.as_called import FirstPass
from synth.runtime.model.execute import (
    Again,
    Calls,
    Schedule,
    behind_last_save,
    execute,
    schedule,
)
from synth.runtime.model.local_chains import Chain, LocalChains
from synth.runtime.model.parameters import Uses, used_at_home
from synth.runtime.model.replication import Replication, whole_gradient
from synth.runtime.model.states import States
from synth.runtime.tensor.partition import Partition
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.generators import GivenGenerator
from synth.runtime.tracing.inputs import Arguments
from synth.runtime.tracing.left_values import LeftByMode
from synth.runtime.tracing.open_regions import Checkpoint
from synth.runtime.tracing.outputs import Structure

NO_CONTEXT = nullcontext()


class Use(NamedTuple):
    """A parameter, buffer or expression that a step uses.

    key: of the model's state, or of an expression. place: where the step uses it.
    slots: in which it is bound there, by name. home: where it is held; None for an
    expression. here: whether the step uses it as it is held.
    """

    key: str
    place: Held
    name: str
    slots: dict[str, Any]
    home: Held | None
    here: bool


@dataclass
class Wiring:
    """The steps of a network, and what connects them.

    context: process groups, buffers and the traffic counter.
    steps: call -> its step. calls: in order, each with those that it reads.
    layouts: call -> the layout of its result. detached: calls without gradients.
    floats: calls with results that may have one. paths: call -> the calls and keys by
        which its result has a gradient, where that is not by all.
    held: call -> (key, where the step uses it); the key is that of the model's state,
        or the name of an expression with parentheses.
    homes: key of the state -> where it is held. expressions: calls that do not depend
        on the input; every rank has their whole results.
    names: call -> the module of the model. targets: call -> the module that it calls,
        and the one that calls it. modes: mode -> why it has another graph.
    shows: node -> the input of the network of which its result is a view.
    part_of: call that the model has not -> the call of the model that it is for.
    outputs: nodes. structure: of what the model gives, which are the first of them.
    left: mode -> what modules in it leave in attributes, of all outputs. left_out: for
        each output, the calls and inputs to which its gradient is zero, of which no
        step reads a word.
    shared: places of outputs with memory of an input or of another output.
    attributes: of modules, which the model reads.
    rings: node -> what ranks hold of its value beside their own words, see `Margins`.
    covered: the calls that read what is held; others, and the user, get own words.
    generators: what stands for those of the user, from which calls draw.
    regions: mode -> node -> the checkpoints that it is in, the outermost first.
    saving: mode -> node of a call that saves a tensor -> whether it has changed its
        buffers by then.
    """

    context: Context
    steps: dict[str, Step] = field(default_factory=dict)
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    layouts: dict[str, Layout] = field(default_factory=dict)
    detached: set[str] = field(default_factory=set)
    floats: set[str] = field(default_factory=set)
    paths: dict[str, set[str]] = field(default_factory=dict)
    held: dict[str, list[tuple[str, Held]]] = field(default_factory=dict)
    homes: dict[str, Held] = field(default_factory=dict)
    expressions: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    targets: dict[str, tuple[str, str]] = field(default_factory=dict)
    modes: dict[bool, str] = field(default_factory=dict)
    shows: dict[str, str] = field(default_factory=dict)
    part_of: dict[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    left: LeftByMode = field(default_factory=dict)
    left_out: tuple[frozenset[str], ...] = ()
    shared: frozenset[int] = frozenset()
    structure: Structure = field(default_factory=lambda: Structure(None))
    attributes: Attributes = field(default_factory=Attributes)
    rings: dict[str, Ring] = field(default_factory=dict)
    covered: set[str] = field(default_factory=set)
    generators: list[GivenGenerator] = field(default_factory=list)
    regions: dict[bool | None, dict[str, tuple[Checkpoint, ...]]] = field(
        default_factory=dict
    )
    saving: dict[bool | None, dict[str, bool]] = field(default_factory=dict)

    def scheduled(self, calls: Calls, mode: bool | None) -> Schedule:
        """Some calls in order, as one of `StepGraph.schedules`."""
        regions, saving = self.regions.get(mode), self.saving.get(mode, {})
        return schedule(calls, self.outputs, regions, saving)

    def parts(self) -> dict[str, Any]:
        """Field -> value."""
        return {each.name: getattr(self, each.name) for each in fields(Wiring)}


@dataclass(kw_only=True)
class StepGraph(Wiring):
    """What a network computes on shards. It has no parameters of its own.

    schedules: training or not -> what is computed when; None: without gradients.
    prefetches: call -> planned layers of which Ker is prefetched before it computes.
    buckets: sums of the gradients of replicated parameters, averages over replicas.
    inputs: name of a tensor among the arguments -> its node.
    arguments: with what the model is called.
    first_pass: compares what steps make with the traced calls.
    replication: what replicas exchange before a pass; None for one replica.
    inference: whether only forward passes run, without gradients.
    operations: floating-point operations of a forward pass, on all ranks together.
    states: where the state lies that one call gives and the next one takes.
    follows: what the modes and settings of the steps are those of; copies of a network
        share the steps.
    read_back: mode -> the form of the last pass, and what its backward pass reads.
    lowered: dtype of autocast -> those of the outputs under it, in the last pass.
    chains: of steps that are compiled where that is faster; None for steps as they are.
    """

    schedules: dict[bool | None, Schedule]
    prefetches: dict[str, list[str]]
    buckets: Buckets
    inputs: dict[str, str]
    arguments: Arguments
    dtype: torch.dtype
    check_finite: bool
    first_pass: FirstPass
    replication: Replication | None = None
    inference: bool = False
    operations: int = 0
    states: States = field(default_factory=States)
    follows: object = None
    read_back: dict[bool, tuple[Any, set[str]]] = field(default_factory=dict)
    lowered: dict[torch.dtype, list[torch.dtype]] = field(default_factory=dict)
    chains: LocalChains | None = None
    running: str = ""  # the call that is made now
    forwards: int = 0  # passes so far; with replicas, those of all of them

    @cached_property
    def settings(self) -> dict[str, set[str]]:
        """Module -> the attributes that all of its steps read at each call."""
        steps = (
            (module, self.steps[call]) for call, (module, _) in self.targets.items()
        )
        return in_all(
            (module, {*(each.inner if isinstance(each, InOneMode) else each).settings})
            for module, each in steps
        )

    @property
    def ranks(self) -> Ranks:
        """The ranks that run the network."""
        return self.context.ranks

    @property
    def input(self) -> str:
        """The node of the first input."""
        return next(iter(self.inputs.values()))

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """Call -> those that it reads."""
        return dict(self.calls)

    @cached_property
    def input_partitions(self) -> dict[str, Partition]:
        """By name, which words of an input each rank reads."""
        pairs = self.inputs.items()
        return {name: Partition(self.layouts[node]) for name, node in pairs}

    @cached_property
    def output_partitions(self) -> dict[str, Partition]:
        """By name, which words of an output each rank computes."""
        return dict(zip(self.structure.names, self.all_partitions, strict=False))

    @cached_property
    def all_partitions(self) -> list[Partition]:
        """Those of what the model gives, and then of what it leaves in attributes."""
        return [Partition(self.layouts[node]) for node in self.outputs]

    @cached_property
    def gets_zeros(self) -> dict[int, tuple[set[str], set[str]]]:
        """Place of an output -> the keys and inputs to which its gradient is zero."""
        inputs, found = {*self.inputs.values()}, {}
        for place, names in enumerate(self.left_out):
            keys = {key for name in names - inputs for key in self._trained_by(name)}
            if keys or names & inputs:
                found[place] = keys, {*(names & inputs)}
        return found

    def _trained_by(self, name: str) -> set[str]:
        """The keys that get a gradient from the result of a call."""
        keys = {key for key, _ in self.held[name]} & self.homes.keys()
        return keys & self.paths.get(name, keys)

    @cached_property
    def seeds(self) -> Seeds:
        """What gives each pass its random numbers."""
        return Seeds(self.modules(), self.ranks)

    @cached_property
    def makes_input_gradient(self) -> bool:
        """Whether every layer is planned with the gradient of its input."""
        layers = (each for each in self.modules() if isinstance(each, DistributedLayer))
        return all("In" in each.program.gradients for each in layers)

    def takes_dtypes(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether dtypes, and autocast, are those when forward read them."""
        read, call = self.attributes, self.arguments
        if not read.dtypes and not read.kinds:
            return True
        planned = [spec.dtype or self.dtype for spec in call.specs]
        now = [each.dtype for each in given]
        if not read.dtypes:
            return [*map(_kind, planned)] == [*map(_kind, now)]
        low = autocast_dtype(given[0].device)
        return (low, now) == (call.inputs.autocast, planned)

    @property
    def owners(self) -> dict[str, str]:
        """Module of the model -> its first call."""
        return {module: call for call, module in reversed(self.names.items())}

    def modules(self) -> Iterator[nn.Module]:
        """The modules of all steps."""
        for step in self.steps.values():
            yield from step.modules()

    def run(
        self,
        shards: Sequence[torch.Tensor],
        tensors: LocalTensors,
        training: bool,
        read: set[str] | None = None,
        waiting: Waiting | None = None,
    ) -> list[torch.Tensor]:
        """The own shards of the outputs.

        shards: of the inputs. tensors: key -> the local part of a parameter or buffer;
        those that buckets sum may be partitioned tensors.
        training: the mode of the model. read: gets the keys, and the nodes of inputs,
        that the backward pass reads; None where they are known. waiting: gradients that
        the network adds up; None for steps that a compiler traces.
        """
        self.context.wait_pending()  # what a step that broke off left on its way
        rounds = self.buckets.begin(tensors, waiting or Waiting())
        grads = torch.is_grad_enabled()

        traced = torch.compiler.is_compiling()  # by `Network.compile`
        opened, prefetches = self.buckets.opened, {} if traced else self.prefetches
        rings, detached = self.rings, self.detached if grads else ()
        parts = self.schedules[training if grads else None]
        mode = training, grads
        looking = self.first_pass.looking(shards, mode)
        chains = None
        eager = waiting is not None and not (traced or self.check_finite)
        seen = read is None and mode in self.first_pass.seen
        if self.chains is not None and eager and seen:
            chains = self.chains.found(self, mode, shards[0].device)
            parts = chains.schedule

        def run_chain(chain: Chain, given: list[torch.Tensor]) -> torch.Tensor:
            for name in opened.keys() & {*chain.calls}:
                self.buckets.open(name, tensors, rounds)
            return chain(given, tensors)

        def run(
            name: str, given: list[torch.Tensor], again: Again | None
        ) -> torch.Tensor:
            self.running = name
            if chains is not None and name in chains.of:
                return run_chain(chains.of[name], given)
            if name in opened:
                self.buckets.open(name, tensors, rounds)
            if name in prefetches:
                self._prefetch(name, tensors, rounds, again)
            past = again is not None and name in again.past
            with (
                torch.no_grad() if name in detached else NO_CONTEXT,
                self._unchanged(name, tensors) if past else NO_CONTEXT,
            ):
                made = self._call(name, given, tensors, read)
                if self.check_finite:
                    made = self._looked(name, made)
            if look is not None:
                look.see(name, self.steps[name], made)
            return self._completed(name, made) if rings else made

        nodes = self.inputs.values()
        pairs = zip(nodes, shards, strict=True)
        values = {
            node: self._completed(node, self._looked(node, shard))
            for node, shard in pairs
        }
        with NO_CONTEXT if traced else looking as look:
            execute(parts, values, run, self.steps)
        self.running = ""
        if chains is not None:
            chains.decide(self.ranks)
        return [self._own_words(node, values[node]) for node in self.outputs]

    def _completed(self, name: str, made: torch.Tensor) -> torch.Tensor:
        """A value with the rows that covered calls need and that others own."""
        return self.rings[name].completed(made) if name in self.rings else made

    def _own_words(self, name: str, held: torch.Tensor) -> torch.Tensor:
        return self.rings[name].own_words(held) if name in self.rings else held

    def _call(
        self,
        name: str,
        given: list[torch.Tensor],
        tensors: LocalTensors,
        read: set[str] | None,
    ) -> torch.Tensor:
        """Call a step with its parameters bound.

        given: what it reads. Without gradients it is emptied: it may hold the last
        references, and the step needs parts of it alone.
        """
        step: Any = self.steps[name]
        planned = isinstance(step, PlannedLayer)
        values: LocalTensors = {}
        kept, held = torch.is_grad_enabled(), given
        if name not in self.plain:
            values = dict(zip(self.sources[name], given, strict=True))
            if self.rings and name not in self.covered:
                values = {each: self._own_words(each, v) for each, v in values.items()}
            given = [
                each for key, each in values.items() if key not in self.expressions
            ]
        passes = isinstance(step, InOneMode) and step.passes
        uses = () if passes else self.uses[name]
        bound = [
            tensors[use.key] if use.here else self._used(name, use, tensors, values)
            for use in uses
        ]
        if not kept and held is not given:
            values.clear()
            held.clear()
        moved = [
            (use, local, _version(local))
            for use, local in zip(uses, bound, strict=True)
            if use.place.is_buffer and not use.here
        ]
        if self.check_finite and not planned:
            self._check_gradients(name, uses, bound)
        try:
            for use, local in zip(uses, bound, strict=True):
                use.slots[use.name] = local
            if planned:
                step.module.check_parameters()
            with span(self.names.get(name, name)):
                made: torch.Tensor
                if planned and not kept and step.is_plain_call:
                    made = step.taking(given)
                else:
                    made = step(*given)
        finally:
            for use in uses:
                use.slots[use.name] = None
        for use, local, version in moved:
            told = _version(local) != version
            self._write_back(name, use, local, tensors, told)
        if read is not None and kept and made.requires_grad:
            values = values or dict(zip(self.sources[name], given, strict=True))
            read.update(self._read_back(name, values, uses, bound))
        return made

    @cached_property
    def behind_last_save(self) -> frozenset[str]:
        """The calls that a user's checkpoint around a pass may not compute again."""
        return behind_last_save(self.schedules[True])

    def last_buffers(self) -> set[str]:
        """The keys of buffers that these calls change in their mode."""
        names = (n for n in self.behind_last_save if self.steps[n].changes_buffers)
        uses = (use for name in names for use in self.uses[name])
        return {use.key for use in uses if use.place.is_buffer}

    @contextmanager
    def _unchanged(self, name: str, tensors: LocalTensors) -> Iterator[None]:
        """Let a call leave the buffers that it uses as they were."""
        uses = self.uses[name] if self.steps[name].changes_buffers else ()
        held = [tensors[use.key] for use in uses if use.place.is_buffer]
        words = [each.detach().clone() for each in held]
        yield
        for own, before in zip(held, words, strict=True):
            own.data.copy_(before)

    @cached_property
    def plain(self) -> set[str]:
        """The calls that get what they read as it is, one value for each."""
        return {
            name
            for name, sources in self.calls
            if len(set(sources)) == len(sources)
            and self.expressions.isdisjoint(sources)
            and not (self.rings and name not in self.covered)
        }

    @cached_property
    def uses(self) -> dict[str, tuple[Use, ...]]:
        """Call -> what it uses of parameters, buffers and expressions."""
        return {
            name: tuple(self._use(key, place) for key, place in self.held[name])
            for name in self.sources
        }

    def _use(self, key: str, place: Held) -> Use:
        home = self.homes.get(key)
        here = home is not None and is_at_home(place, home)
        return Use(key, place, place.name, place.slots, home, here)

    def _check_gradients(
        self, name: str, uses: Sequence[Use], bound: Sequence[torch.Tensor]
    ) -> None:
        """Look at the gradients to come of what a step uses."""
        for use, local in zip(uses, bound, strict=True):
            if local.requires_grad:
                own = use.key.rpartition(".")[2]
                what = f"{self.names.get(name, name)}: d{own}"
                check_gradient(what, local, _nowhere, self.ranks)

    def _read_back(
        self,
        name: str,
        values: LocalTensors,
        uses: Sequence[Use],
        bound: Sequence[torch.Tensor],
    ) -> Iterator[str]:
        """The keys, and the inputs of the network, that a step's backward pass reads.

        values: what the step was given, by node. bound: what it used.
        """
        step = self.steps[name]
        trained = any(each.requires_grad for each in values.values())
        for use in uses:
            updated = use.place.is_buffer and step.changes_buffers
            if not updated and step.reads_back(use.name, trained):
                yield use.key
        pairs = zip(uses, bound, strict=True)
        weighted = any(e.requires_grad for use, e in pairs if use.name == "weight")
        if step.reads_inputs(weighted):
            yield from (self.shows.get(each, each) for each in values)

    def _used(
        self, name: str, use: Use, tensors: LocalTensors, values: LocalTensors
    ) -> torch.Tensor:
        """What a step uses of what lies elsewhere, or of an expression."""
        if use.home is None:
            return part_of(values[use.key.removesuffix("()")], use.place)
        local = tensors[use.key]
        return fetched(local, use.home, use.place, self._counter(name))

    def _write_back(
        self,
        name: str,
        use: Use,
        local: torch.Tensor,
        tensors: LocalTensors,
        told: bool,
    ) -> None:
        """Copy a buffer that a step may have changed to where it is held.

        told: whether autograd knows the change; kernels of norms do not tell it.
        """
        if use.home is not None and self.steps[name].changes_buffers:
            with torch.no_grad():
                count, own = self._counter(name), tensors[use.key]
                own = own if told else own.data
                write_back(local, own, use.home, use.place, count)

    def _counter(self, name: str) -> Count:
        return self.context.counter("move", 0, f"weights of {name}")

    def _prefetch(
        self,
        name: str,
        tensors: LocalTensors,
        rounds: dict[int, Sums],
        again: Again | None,
    ) -> None:
        """Start to gather Ker of later layers; of those that are computed again."""
        for later in self.prefetches.get(name, ()):
            if again is not None and later not in again.names:
                continue
            step: Any = self.steps[later]
            self.buckets.open(later, tensors, rounds)
            for key, place in self.held[later]:
                if place.name == "weight":
                    self.buckets.open_for(key, tensors, rounds)
                    step.prefetch(tensors[key])

    def _looked(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """What a step made, looked at with its gradient to come where that is asked."""
        if self.check_finite and name not in self.expressions:
            shown = self.names.get(name, name)
            require_finite(f"{shown}: Out", values, _nowhere, self.ranks)
            check_gradient(f"{shown}: dOut", values, _nowhere, self.ranks)
        return values


def in_all(named: Iterable[tuple[str, set[str]]]) -> dict[str, set[str]]:
    """Name -> what all sets that are given for it have."""
    found: dict[str, set[str]] = {}
    for name, own in named:
        found[name] = found.get(name, own) & own
    return found


def prefetched_before(
    steps: dict[str, Step],
    order: Sequence[str],
    ahead: int,
    held: Uses,
    homes: Mapping[str, Held],
) -> dict[str, list[str]]:
    """Call -> the planned layers of which Ker is prefetched before it computes.

    Not those whose Ker is an expression or is held elsewhere, or that gather nothing.
    """
    planned = [
        name
        for name in order
        if isinstance(steps[name], PlannedLayer) and used_at_home(name, held, homes)
    ]
    prefetches = dict[str, list[str]]()
    for place, name in enumerate(planned if ahead else []):
        step: Any = steps[name]
        if step.module.one_call is not None:
            continue
        before = planned[max(0, place - ahead)]
        prefetches.setdefault(before, []).append(name)
    return prefetches


def shared_parameters(
    held: Uses,
    homes: Mapping[str, Held],
    order: Sequence[str],
    tensors: dict[str, torch.Tensor],
    ranks: Ranks,
) -> list[Shared]:
    """Parameters of which several ranks hold a copy, in the order of their use.

    With several replicas these are all parameters of which this rank holds words.
    """
    found: dict[str, Shared] = {}
    for name in order:
        for key in (key for key, _ in held[name] if key in homes):
            place, values = homes[key], tensors[key]
            where, trained = place.partition, isinstance(values, nn.Parameter)
            if key in found or not trained or where is None or not where.local_words:
                continue
            if place.copies:
                words = where.local_words
                found[key] = Shared(key, place.copies, words, values.dtype, name)
            elif ranks.replicas is not None:
                held_at, spread = whole_gradient(where)
                words = where.local_words if spread is None else volume(spread.span)
                shared = Shared(key, held_at, words, values.dtype, name, spread)
                found[key] = shared
    return list(found.values())


def _nowhere(index: int) -> str:
    """A rank's place on the grid, where there is none."""
    return ""


def _version(values: torch.Tensor) -> int:
    """How often a tensor was changed; that of one of inference mode is not counted."""
    return 0 if values.is_inference() else int(values._version)


def _kind(dtype: torch.dtype) -> tuple[bool, bool]:
    """Whether a dtype is one of floating-point numbers, and of complex ones."""
    return dtype.is_floating_point, dtype.is_complex
