"""Assembles the step graph of a network from its traced model and its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import fx, nn

from synth.runtime.comm.gradient_buckets import BYTES, Buckets, Shared
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import Box
from synth.runtime.kernels.autotune import default_tuner
from synth.runtime.kernels.context import Context
from synth.runtime.layers.planned_layer import PlannedBoxes
from synth.runtime.layers.steps.held import BORDER
from synth.runtime.model.build import Builder
from synth.runtime.model.checks.as_called import FirstPass
from synth.runtime.model.local_chains import LocalChains
from synth.runtime.model.margins import MarginPlace
from synth.runtime.model.replication import Replication
from synth.runtime.model.states import Pair, States
from synth.runtime.model.step_graph import (
    StepGraph,
    prefetched_before,
    shared_parameters,
)
from synth.runtime.model.wanted_layouts import Make
from synth.runtime.operators.batch_norms import BatchNorms, Statistics
from synth.runtime.operators.call import node_shape
from synth.runtime.tensor.partition import Partition
from synth.runtime.tracing.inputs import Arguments, Inputs

# the boxes of all ranks before and after a call
BoxPair = tuple[tuple[Box, ...], tuple[Box, ...]]


class NetworkParts(NamedTuple):
    """What a network is made of for one shape of its inputs.

    inputs: with what the model is called. graph: what it then calls.
    make: the planned layer for a name, a module and its input's shape, None for none.
    places: by the name of a call, the boxes of all ranks before and after a pooling.
    dtype: of the parameters. inference: only forward passes run, without gradients.
    margins: by the name of a call or input, its boxes where rows are computed twice.
    operations: floating-point operations of a forward pass of the whole model.
    state: the argument of which the last output is the next value; "" for none.
    compile: whether chains of local steps are compiled where that is faster.
    The others are those of `Network`.
    """

    inputs: Inputs
    graph: fx.Graph
    make: Make
    places: Mapping[str, BoxPair]
    dtype: torch.dtype = torch.float32
    refuse: bool = False
    batch_norm: Statistics = "global"
    bucket_bytes: int = BYTES
    check_finite: bool = False
    ahead: int = 1
    inference: bool = False
    margins: Mapping[str, MarginPlace] = MappingProxyType({})
    operations: int = 0
    state: str = ""
    compile: bool = False


def assembled(
    model: nn.Module,
    parts: NetworkParts,
    process_groups: ProcessGroups,
    first: StepGraph | None = None,
    device: torch.device | None = None,
    partitions: Mapping[str, Partition] | None = None,
) -> StepGraph:
    """The step graph of a model.

    first: another one, of which this one uses the parameters where they are held.
    device: that of the model's parameters if the model is on "meta".
    partitions: those of the parameters and buffers that the network has, by their keys,
        where the model was changed after `first`; others are new.

    Raises `ValueError` for a model that ranks cannot run, or that uses parameters or
    buffers which it does not use in the first graph.
    """
    placed = {name: PlannedBoxes(*boxes) for name, boxes in parts.places.items()}
    homes = None if first is None or partitions is not None else first.homes

    def built(known: Mapping[str, Layout], quiet: bool = False) -> Builder:
        context = Context(tuner=default_tuner(), process_groups=process_groups)
        if first is not None:  # which the failure detector looks at
            before = first.context.traffic
            context.traffic.network = before.network or before
        return Builder(
            model,
            parts.graph,
            parts.make,
            context,
            places=placed,
            refuse=parts.refuse,
            batch_norms=BatchNorms(context, parts.batch_norm),
            given_homes=homes,
            device=device,
            inference=parts.inference,
            partitions=partitions or {},
            margins=parts.margins,
            states=known,
            quiet=quiet,
        )

    arguments = Arguments(model, parts.inputs)
    states = States(parts.state) if first is None else first.states
    made = with_states(built, states, states.pairs(arguments, parts.graph))
    order = [name for name, _ in made.calls]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    dtypes = [each.dtype or parts.dtype for each in arguments.specs]
    ranks = process_groups.ranks
    shared: list[Shared] = []
    if not parts.inference:
        shared = shared_parameters(made.held, made.homes, order, tensors, ranks)
    prefetches = prefetched_before(
        made.steps, order, parts.ahead, made.held, made.homes
    )
    replication = None
    if ranks.replicas is not None:
        replication = Replication(process_groups, made.held, made.homes, tensors)
    return StepGraph(
        **made.parts(),
        schedules={
            mode: made.scheduled(made.calls, mode) for mode in (None, False, True)
        },
        prefetches=prefetches,
        buckets=Buckets(
            *(shared, process_groups, parts.bucket_bytes),
            keeps=parts.ahead > 0,
            border=BORDER,
            count=partial(made.context.traffic.add, "sum", 0, "gradients"),
        ),
        inputs=dict(zip(arguments.names, made.inputs, strict=True)),
        arguments=arguments,
        dtype=parts.dtype,
        check_finite=parts.check_finite,
        first_pass=FirstPass(made.expected, dtypes, ranks),
        replication=replication,
        inference=parts.inference,
        operations=parts.operations,
        states=states,
        chains=LocalChains() if parts.compile else None,
    )


def with_states(
    built: Callable[..., Builder], states: States, pairs: Sequence[Pair]
) -> Builder:
    """What is built, with the state where it is computed, or where it lay before."""
    known = states.known(pairs)
    if len(known) < len(pairs):
        tried = built(known, quiet=True)
        new = {p.taken.name: tried.layouts[p.given.name] for p in pairs}
        known = new | known
    made = built(known)
    states.learn(pairs, made.layouts)
    for name, place in states.given(made.structure).items():
        node = made.graph_outputs[place]
        target = states.layouts.get((name, node_shape(node)))
        if target is not None:
            made.leave(node, place, target)
    return made
