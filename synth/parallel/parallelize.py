"""A user's torch model on some ranks, or on all: the whole network as it is planned.

    net = synth.parallelize(model, (32, 3, 224, 224))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    criterion(net(images), labels).backward()     # images and labels are whole, the same on all ranks
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()

Parameters, gradients, the optimizer's state and the output are `PartitionedTensor`s: global tensors, of which
every rank holds a part.

Convolutions, linear layers, poolings and upsamplings run by their plans. The plans of all layers are chosen
together with the words that move between layers of different layouts. Batch normalization has the statistics
of the whole batch, or local ones; pooling fetches the rows of its neighbours. Every rank computes from the
gathered whole what cannot be computed on shards; the first rank names it on stderr.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from synth.base.errors import UsageError
from synth.base.units import as_bytes
from synth.layer.axes import TENSORS
from synth.machine.file import load_machine
from synth.network import graph
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.plan_file import NetworkPlanFile
from synth.network.planner.planner import plan_network
from synth.network.planner.request import NetworkRequest, check_batch_norm
from synth.parallel.fast_plan import for_time, objective_of
from synth.parallel.first_rank import chosen_by_first
from synth.parallel.front_end import trace_model
from synth.parallel.layer_planner import How, LayerPlanner
from synth.parallel.layer_plans import LayerPlans, plans_of_model
from synth.parallel.machine_here import measured_here
from synth.parallel.members import ranks_of
from synth.parallel.mode import check_mode, require_evaluation
from synth.parallel.plan_digest import digest_of_plan
from synth.parallel.planned_words import planned_words, require_few
from synth.planning.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from synth.parallel.front_end import TracedModel
    from synth.runtime.grid.ranks import Ranks
    from synth.runtime.model.assemble import NetworkParts
    from synth.runtime.model.network import Network
    from synth.runtime.model.planned_words import PlannedWords
    from synth.runtime.model.step_graph import StepGraph
    from synth.runtime.tracing.inputs import Inputs

Boxes = tuple[tuple[tuple[int, int], ...], ...]  # of every rank: an interval per dimension


def parallelize(
    model: nn.Module,
    input: Sequence[int] | Sequence[Any] | Mapping[str, Any] | Inputs,
    procs: int | DeviceMesh | ProcessGroup | None = None,
    plan: NetworkPlan | NetworkPlanFile | os.PathLike[str] | Mapping[str, How] | How | None = None,
    *,
    memory: int | str | None = None,
    refuse: bool = False,
    bucket_bytes: int = 25 * 2**20,
    check_finite: bool = False,
    input_gradient: bool = False,
    ahead: int | None = None,
    batch_norm: Literal["global", "local"] = "global",
    mode: str = "training",
    objective: Literal["time", "words"] | None = None,
) -> Network:
    """The model as a module on several ranks, with its parameters under their names. All ranks must call it.

    It takes the arguments of the model's `forward`: whole batches, the same on all ranks, or partitioned
    ones. It gives what the model gives, with partitioned tensors in the places of tensors.

    input: shape of the whole batch in elements. A batch of another shape, such as the last one of an epoch,
        is planned when it comes first; the weights stay where they are. For several inputs a tuple of
        shapes and example tensors by position, a dict of them by name, or `synth.Inputs` with both.
    procs: the ranks that run it, which alone call it: a process group of torch, or a mesh of one dimension,
        such as `mesh["synth"]` of a larger one. None: all ranks of the job. A number: all of them, checked.
        With a mesh of two dimensions each row runs a replica of the model, as with HSDP: each replica is
        given its own batch of the shape `input` and computes its own loss. Gradients are averaged over the
        replicas, as by DDP. `input` and the plan are those of one replica.
    plan: of the whole network, as `plan_model` or `synth.plan` makes it, or the file that `synth plan
        NET.yaml --json -o plan.json` writes. Or, for every layer, or by the name of a layer as
        `named_modules` has it ("" for the others): a training plan, parts of its grid such as {"h": 4}, or
        the name of a strategy such as "spatial". Then each layer is planned by itself. Layers that a
        strategy does not fit, or that have no name there, move the fewest words. None: planned on
        the first rank, for `objective`.
    memory: limit of the plan, or of each plan, in bytes per process.
    refuse: raise `ValueError` with the name of a layer that would have to be gathered.
    bucket_bytes: size of the messages in which gradients of biases are summed during the backward pass; 0
        for one message per bias.
    check_finite: check for NaN and infinity in all activations and gradients, with one small collective for
        each. All ranks then raise `FloatingPointError`, which names layer, tensor and ranks.
    input_gradient: whether a step makes the gradient of the batch, too. A given plan decides it by itself.
    ahead: layers of which Ker is gathered while one computes (1); sums of dKer then travel while as many
        compute their gradients. It needs memory for as many more slices: 0 where memory was limited.
    batch_norm: statistics of batch normalizations, over the whole batch, as in one process; or "local", over
        the samples that a rank has, as DDP's. Ranks that hold parts of the same samples share statistics.
        Running statistics are those of the first samples, as DDP keeps those of rank 0.
    mode: "training", or "inference" for the forward pass alone. Then each rank always holds the weights that
        it uses, and only activations move; docs/inference.md. What would train is refused.
    objective: of a training plan made here: "time", the fewest seconds on this machine, or "words", the
        fewest words received, as `plan_model`. Inference is planned for words. For time, the first call
        measures the machine for some seconds and keeps the numbers in the user's cache folder; ranks may
        hold whole slices of weights, as with DDP, where they fit `memory`. None: what the environment
        variable SYNTH_OBJECTIVE says, else "time".

    Raises `ValueError` on all ranks, with rank and difference, if they have another model, mode, input, plan,
    option, or version of synth or torch. The same holds if one rank fails while it reads them.
    Raises `UsageError` for a wrong argument, on a rank that is none of `procs`, for a name that no layer has,
    or a plan of another model. Raises `InfeasibleError` if nothing fits the memory. Raises `ValueError` for a
    model that the ranks cannot run, for example one with hooks. docs/training.md lists these
    models.
    """
    from synth.runtime.comm.process_groups import with_everyone
    from synth.runtime.model.consistency import consistent
    from synth.runtime.model.training_watch import watched
    from synth.runtime.tracing.inputs import Inputs

    check_batch_norm(batch_norm, mode)
    chosen_objective = objective_of(objective)
    members = ranks_of(procs)
    options: dict[str, Any] = {"refuse": refuse, "bucket_bytes": bucket_bytes, "check_finite": check_finite}
    options["batch_norm"] = batch_norm
    given = {**options, "memory": memory, "input_gradient": input_gradient, "ahead": ahead, "mode": mode}
    given["objective"] = chosen_objective
    settings = {("options", name): partial(str, value) for name, value in given.items()}
    settings["plan", "it"] = partial(digest_of_plan, plan)
    with watched(members.everyone) as adopt:  # a rank that is lost meanwhile is named, too
        members = with_everyone(members)
        read = partial(_read, model, input, members.size, plan, ahead, mode)
        prepared = consistent(read, model, input, settings, members.everyone)
        recipe = _Recipe(
            members, memory, input_gradient, ahead, options, mode == "inference", chosen_objective
        )
        return adopt(recipe.network(model, Inputs.of(input), prepared))


class _Prepared(NamedTuple):
    """What one rank reads by itself: the model, and what the given plan decides of it.

    chosen: by the name of a module, what the user wants for it. plans: a plan of the whole network.
    """

    traced: TracedModel
    chosen: dict[str, How]
    plans: LayerPlans | None
    planned: bool  # whether the user gave a plan

    @property
    def whole_plan(self) -> bool:
        """Whether the user gave a plan of the whole network."""
        return self.planned and self.plans is not None


def _read(
    model: nn.Module,
    input: Any,
    ranks: int,
    plan: NetworkPlan | NetworkPlanFile | os.PathLike[str] | Mapping[str, How] | How | None,
    ahead: int | None,
    mode: str,
) -> _Prepared:
    """Model and plan, without communication."""
    check_mode(mode)
    if mode == "inference":
        require_evaluation(model)
    if ahead is not None and ahead < 0:
        raise UsageError(f"ahead is {ahead}; give the number of layers, 0 for none")
    traced = trace_model(model, input)
    if isinstance(plan, NetworkPlan | NetworkPlanFile | os.PathLike) or str(plan).endswith(".json"):
        found = plans_of_model(plan, traced.network, ranks, mode == "inference")  # type: ignore[arg-type]
        return _Prepared(traced, {}, found, True)
    chosen = _by_name(plan)
    known = {name for name, _ in model.named_modules()}
    for name in chosen:
        if name not in known:
            raise UsageError(f"plan names the layer {name}, which the model does not have")
    return _Prepared(traced, chosen, None, plan is not None)


class _Recipe(NamedTuple):
    """How `parallelize` plans a model, for its first shape and for others.

    options: of `NetworkParts`. inference: whether only forward passes run. objective: "time" or "words".
    """

    members: Ranks
    memory: int | str | None
    input_gradient: bool
    ahead: int | None
    options: dict[str, Any]
    inference: bool = False
    objective: str = "words"

    def network(self, model: nn.Module, inputs: Inputs, prepared: _Prepared) -> Network:
        """The network of a model. Other shapes are planned like the first, if that was planned here."""
        from synth.runtime.model.assemble import assembled
        from synth.runtime.model.network import Network

        def other(template: nn.Module, inputs: Inputs, first: StepGraph, device: torch.device) -> StepGraph:
            if prepared.whole_plan:
                raise ValueError(
                    f"the plan that was given is not for the input {inputs}; parallelize without a plan, or"
                    " with a strategy, to run several shapes"
                )
            traced = trace_model(template, inputs, device=device.type)
            read = _Prepared(traced, prepared.chosen, None, prepared.planned)
            return assembled(template, self.parts(inputs, read), first.context.process_groups, first, device)

        return Network(model, self.parts(inputs, prepared), self.members, other)

    def parts(self, inputs: Inputs, prepared: _Prepared) -> NetworkParts:
        """What the network is made of for some inputs. All ranks call this."""
        from synth.runtime.model.assemble import NetworkParts

        members, memory, options = self.members, self.memory, self.options
        traced, chosen, plans, planned = prepared
        network, ranks = traced.network, members.size
        if not planned and network.planned:
            asked = {"input_gradient": self.input_gradient, "batch_norm": options["batch_norm"]}
            request = _unlimited_saves(_request(self.inference, procs=ranks, **asked), memory)
            if self.objective == "time" and ranks > 1 and not self.inference:
                request = for_time(request, measured_here(members, traced.device, traced.dtype))
            plans = chosen_by_first(network, request, members)
        needed = network.needs_input_gradient
        inner = {node.name for node in network.planned if self.input_gradient or needed(node)}
        planner = LayerPlanner(
            *(chosen, ranks, memory, options["check_finite"], plans, inner, traced.layers, self.inference)
        )
        ahead = 0 if self.inference else self.ahead
        if ahead is None:
            given = [each for each in chosen.values() if isinstance(each, Plan)]
            limited = plans.limited if plans else memory is not None or any(p.limit_bytes for p in given)
            ahead = 0 if limited else 1
        places = _places(traced, plans, ranks) if plans else {}
        return NetworkParts(
            *(inputs, traced.graph, planner.layer, places, traced.dtype),
            ahead=ahead,
            inference=self.inference,
            **options,
        )


def _places(traced: TracedModel, plans: LayerPlans, ranks: int) -> dict[str, tuple[Boxes, Boxes]]:
    """Node of the graph -> the boxes of all ranks before and after a layer without weights."""
    nodes = {str(node.meta["layer"]): node.name for node in traced.graph.nodes if "layer" in node.meta}
    places = {}
    for node in traced.network.planned:
        boxes = None if node.weighted else plans.boxes(node, ranks)
        if boxes is not None:
            places[nodes[node.name]] = boxes
    return places


def plan_model(
    model: nn.Module,
    input: Sequence[int] | Sequence[Any] | Mapping[str, Any] | Inputs,
    procs: int,
    *,
    memory: int | str | None = None,
    axes: str = "",
    input_gradient: bool = False,
    objective: str = "words",
    machine: str | os.PathLike[str] | None = None,
    batch_norm: Literal["global", "local"] = "global",
    mode: str = "training",
    whole_weights: bool = False,
) -> NetworkPlan:
    """A training plan of all layers of a model together: the fewest words in layers and between them.

    objective: or "time", the fewest seconds on a machine: a file, or the name of a shipped one.
    memory: bytes per process. Without a limit the passes of a layer save what they have gathered for
        later passes; with one only dOut is saved, by backward-data for backward-filter.
    axes: the grids split no other axes than these, but where a layer cannot use all processes so; "" for
        all axes.
    input_gradient: whether a step makes the gradient of the batch, too; else layers with nothing trained
        before them make that of their weights alone.
    batch_norm: as for `parallelize`. It decides `statistics_words` of the plan, and its seconds.
    mode: "training", or "inference" for a forward pass with resident weights. `memory` then limits the
        weights of all layers together with the working memory of each.
    whole_weights: for time, whether ranks may hold whole slices of weights, as with DDP, where that is
        faster and fits; `plan.whole` then tells by layer.

    Raises `InfeasibleError` where no plan fits; the message says what would. `UsageError` for a wrong
    argument, `InputError` for a wrong machine file.
    """
    from synth.runtime.model.programs import emptied
    from synth.runtime.tracing.inputs import Inputs

    check_mode(mode)
    where = None if machine is None else load_machine(machine)
    request = _request(
        mode == "inference",
        procs=procs,
        objective=objective,
        machine=where,
        axes=axes,
        strict_axes=False,
        input_gradient=input_gradient,
        batch_norm=batch_norm,
        whole_weights=whole_weights,
    )
    traced = trace_model(model, input)
    plan = _planned(traced.network, request, memory)
    return replace(plan, words_of=partial(_words_of, emptied(model), Inputs.of(input), traced))


def _words_of(model: nn.Module, inputs: Inputs, traced: TracedModel, plan: NetworkPlan) -> PlannedWords:
    """The words of all calls of a model without values, on ranks that do not run."""
    from synth.runtime.grid.ranks import AbsentRanks

    request = plan.request
    require_few(request.procs)
    options = {"check_finite": False, "batch_norm": request.batch_norm}
    inference = request.resident_weights
    asked = request.input_gradient and not inference
    ranks = AbsentRanks.numbered(request.procs)
    recipe = _Recipe(ranks, None, asked, None, options, inference)
    parts = recipe.parts(inputs, _Prepared(traced, {}, LayerPlans.of(plan), True))
    return planned_words(model, parts, ranks, asked)


def _planned(network: graph.Network, request: NetworkRequest, memory: int | str | None) -> NetworkPlan:
    return plan_network(network, _unlimited_saves(request, memory))


def _unlimited_saves(request: NetworkRequest, memory: int | str | None) -> NetworkRequest:
    """The request with a limit of memory, without which passes save all that they gather."""
    limit = as_bytes(memory)
    saves = frozenset(TENSORS) if limit is None else request.saves
    return replace(request, limit_bytes=limit, exact_procs=True, saves=saves)


def _request(inference: bool, **fields: Any) -> NetworkRequest:
    """A request of a training step, or of a forward pass with resident weights."""
    if inference:
        return NetworkRequest(**{**fields, "input_gradient": True}, resident_weights=True)
    return NetworkRequest(**fields, training=True)


def _by_name(plan: Mapping[str, How] | How | None) -> dict[str, How]:
    if plan is None:
        return {}
    if isinstance(plan, Plan | str):
        return {"": plan}
    if all(isinstance(parts, int) for parts in plan.values()):
        return {"": plan}  # type: ignore[dict-item]
    return dict(plan)  # type: ignore[arg-type]
