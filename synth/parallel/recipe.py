"""How `parallelize` makes a network of a model: it reads model and plan, and chooses the plans of layers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from synth.base.doors import Door, entered_by
from synth.base.errors import UsageError
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_file import NetworkPlanFile
from synth.network.request import NetworkRequest, limit_of
from synth.network.step_time.buckets import LARGEST
from synth.network.step_time.calls import operations
from synth.parallel.fast_plan import for_time
from synth.parallel.first_rank import chosen_by_first
from synth.parallel.front_end.trace_model import trace_model
from synth.parallel.given_plan import plans_of_model
from synth.parallel.layer_planner import How, LayerPlanner
from synth.parallel.layer_plans import LayerPlans
from synth.parallel.margin_places import margin_places
from synth.parallel.mode import check_mode, require_evaluation
from synth.parallel.planned_words import planned_words, require_few
from synth.planning.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch import nn

    from synth.parallel.front_end.trace_model import TracedModel
    from synth.runtime.grid.ranks import Ranks
    from synth.runtime.grid.rules.processors import Processor
    from synth.runtime.model.assemble import NetworkParts
    from synth.runtime.model.network import Network
    from synth.runtime.model.planned_words import PlannedWords
    from synth.runtime.model.step_graph import StepGraph
    from synth.runtime.tensor.partition import Partition
    from synth.runtime.tracing.inputs import Inputs

Boxes = tuple[tuple[tuple[int, int], ...], ...]  # of every rank: an interval per dimension


class PreparedModel(NamedTuple):
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


def prepared_model(
    model: nn.Module,
    input: Any,
    ranks: int,
    plan: NetworkPlan | NetworkPlanFile | os.PathLike[str] | Mapping[str, How] | How | None,
    ahead: int | None,
    mode: str,
    device: str | None = None,
) -> PreparedModel:
    """Model and plan, without communication. device: on which it runs if the model is on "meta"."""
    check_mode(mode)
    if mode == "inference":
        require_evaluation(model)
    if ahead is not None and ahead < 0:
        raise UsageError(f"ahead is {ahead}; give the number of layers, 0 for none")
    traced = trace_model(model, input, device=device)
    if isinstance(plan, NetworkPlan | NetworkPlanFile | os.PathLike) or str(plan).endswith(".json"):
        found = plans_of_model(plan, traced.network, ranks, mode == "inference")  # type: ignore[arg-type]
        return PreparedModel(traced, {}, found, True)
    chosen = _by_name(plan)
    known = {name for name, _ in model.named_modules()}
    for name in chosen:
        if name not in known:
            raise UsageError(f"plan names the layer {name}, which the model does not have")
    return PreparedModel(traced, chosen, None, plan is not None)


class NetworkRecipe(NamedTuple):
    """How `parallelize` plans a model, for its first shape and for others.

    options: of `NetworkParts`. inference: whether only forward passes run. measured: measures the machine of
    some ranks, for the fewest seconds on it; None for the fewest words. prepare: reads a model and the user's
    plan again, for a model that was changed. whole: whether outputs are whole on every rank. recompute: extra
    work of the busiest rank, as a fraction, on rows that others own. compare: compares what is called first
    later with the model, as `parallelize` compares `forward`; None where nobody does.
    """

    members: Ranks
    memory: int | str | None
    input_gradient: bool
    ahead: int | None
    options: dict[str, Any]
    inference: bool = False
    measured: Callable[[Ranks, torch.device, torch.dtype], dict[str, Any]] | None = None
    prepare: Callable[..., PreparedModel] | None = None
    whole: bool = False
    recompute: float | None = None
    compare: Callable[..., None] | None = None

    def network(self, model: nn.Module, inputs: Inputs, prepared: PreparedModel) -> Network:
        """The network of a model. Other shapes are planned like the first, if that was planned here."""
        from synth.runtime.model.assemble import assembled
        from synth.runtime.model.checks.consistency import consistent
        from synth.runtime.model.network import Network

        @entered_by(Door.MODEL)
        def other(
            template: nn.Module,
            inputs: Inputs,
            first: StepGraph,
            device: torch.device,
            partitions: Mapping[str, Partition] | None = None,
            input_gradient: bool = False,
            network: nn.Module | None = None,
        ) -> StepGraph:
            if partitions is not None:
                assert self.prepare is not None
                read = partial(self.prepare, template, inputs, device=device.type)
                again = consistent(read, template, inputs, {}, self.members.everyone)
                place = first.context.process_groups, first, device, partitions
                return assembled(template, self.parts(template, inputs, again), *place)
            if prepared.whole_plan and input_gradient:
                raise ValueError(
                    "an input requires a gradient, which the plan that was given does not make; plan with"
                    " input_gradient=True"
                )
            if prepared.whole_plan and network is None:
                raise ValueError(
                    f"the plan that was given is not for the input {inputs}; parallelize without a plan, or"
                    " with a strategy, to run several shapes"
                )
            if prepared.whole_plan:  # another call may have the same layers
                assert self.prepare is not None
                made = self.prepare(template, inputs, device=device.type)
            else:
                traced = trace_model(template, inputs, device=device.type)
                made = PreparedModel(traced, prepared.chosen, None, prepared.planned)
            if network is not None:
                self._compare(template, network, inputs, made.traced)
            asked = self._replace(input_gradient=self.input_gradient or input_gradient)
            parts = asked.parts(template, inputs, made)
            return assembled(template, parts, first.context.process_groups, first, device)

        return Network(model, self.parts(model, inputs, prepared), self.members, other, self.whole)

    def _compare(self, template: nn.Module, network: nn.Module, inputs: Inputs, traced: TracedModel) -> None:
        """Compare what is called first now with the model, on the first rank. All ranks call this.

        template: without values. network: which has them.
        """
        from synth.runtime.model.self_check.samples import with_values

        if self.compare is None:
            return
        ranks = self.members.everyone
        model = with_values(template, network, traced.device, ranks.me == 0)
        asked = ranks, self.inference, self.options["batch_norm"]
        self.compare(model, inputs, traced, *asked)

    def parts(self, model: nn.Module, inputs: Inputs, prepared: PreparedModel) -> NetworkParts:
        """What the network of a model is made of for some inputs. All ranks call this."""
        from synth.runtime.model.assemble import NetworkParts

        members, memory, options = self.members, self.memory, self.options
        traced, chosen, plans, planned = prepared
        network, ranks = traced.network, members.size
        if not planned and network.planned:
            asked: dict[str, Any] = {
                "input_gradient": self.input_gradient,
                "batch_norm": options["batch_norm"],
            }
            asked["processors"] = processors_of(members)
            asked["recompute"] = self.recompute
            request = request_of(self.inference, procs=ranks, ahead=self.ahead, **asked)
            if self.measured and ranks > 1:
                request = for_time(request, self.measured(members, traced.device, traced.dtype))
            counted = partial(counting, model, inputs, traced, options.get("state") or "")
            plans = chosen_by_first(network, within(request, memory), members, counted)
        needed = network.needs_input_gradient
        inner = {node.name for node in network.planned if self.input_gradient or needed(node)}
        planner = LayerPlanner(
            chosen,
            ranks,
            memory,
            check_finite=options["check_finite"],
            decided=plans,
            inner=inner,
            names=traced.layers,
            inference=self.inference,
        )
        ahead = 0 if self.inference else self.ahead
        if ahead is None:
            given = [each for each in chosen.values() if isinstance(each, Plan)]
            limited = plans.limited if plans else memory is not None or any(p.limit_bytes for p in given)
            ahead = 0 if limited else 1
        places = _places(traced, plans, ranks) if plans else {}
        if options.get("bucket_bytes") is None:
            options = {**options, "bucket_bytes": plans.bucket_bytes if plans else LARGEST}
        return NetworkParts(
            inputs,
            traced.graph,
            make=planner.layer,
            places=places,
            dtype=traced.dtype,
            ahead=ahead,
            inference=self.inference,
            margins=margin_places(traced, plans, ranks) if plans else {},
            operations=operations(network),
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


def _by_name(plan: Mapping[str, How] | How | None) -> dict[str, How]:
    if plan is None:
        return {}
    if isinstance(plan, Plan | str):
        return {"": plan}
    if all(isinstance(parts, int) for parts in plan.values()):
        return {"": plan}  # type: ignore[dict-item]
    return dict(plan)  # type: ignore[arg-type]


def processors_of(ranks: Ranks) -> tuple[Processor, ...]:
    """The processors of some ranks and their replicas; () if one is not known. All ranks call this."""
    from synth.runtime.comm.group_tree import combined
    from synth.runtime.grid.rules.processors import this_processor

    found = combined(ranks.everyone, {this_processor()}, lambda own, child: own | child)
    return () if None in found else tuple(sorted(found))


def counting(
    model: nn.Module, inputs: Inputs, traced: TracedModel, state: str
) -> Callable[[NetworkPlan], PlannedWords]:
    """Counts the words of all calls of a model in a plan, on ranks that do not run.

    It keeps no values of the model. state: see `parallelize`.
    """
    from synth.runtime.grid.ranks import AbsentRanks
    from synth.runtime.model.templates import emptied

    template, given = emptied(model, ()), inputs.without_examples()

    def words_of(plan: NetworkPlan) -> PlannedWords:
        request = plan.request
        require_few(request.procs)
        options = {"check_finite": False, "batch_norm": request.batch_norm, "state": state}
        inference = request.resident_weights
        asked = request.input_gradient and not inference
        ranks = AbsentRanks.numbered(request.procs)
        recipe = NetworkRecipe(ranks, None, asked, None, options, inference)
        made = PreparedModel(traced, {}, LayerPlans.of(plan), True)
        return planned_words(template, recipe.parts(template, given, made), ranks, asked)

    return words_of


# -- requests for plans ---------------------------------------------------------------------------------


def within(request: NetworkRequest, memory: int | str | None) -> NetworkRequest:
    """The request on all ranks, with a limit of memory: what is given, else the memory of its machine."""
    return replace(request, limit_bytes=limit_of(memory, request.machine), exact_procs=True)


def request_of(inference: bool, **fields: Any) -> NetworkRequest:
    """A request of a training step, or of a forward pass with resident weights."""
    if inference:
        return NetworkRequest(**{**fields, "input_gradient": True}, resident_weights=True)
    return NetworkRequest(**fields, training=True)
