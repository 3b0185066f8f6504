"""A plan that the user gives: its layers are matched with those of a model, or it is refused."""

from __future__ import annotations

import os

from synth.base.errors import UsageError
from synth.layer.axes import AXES, PerAxis
from synth.layer.passes import GRADIENTS
from synth.network.graph import Network, Node
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_file import NetworkPlanFile
from synth.network.plan.plan_json import parse_network_plan
from synth.parallel.layer_plans import LayerPlans
from synth.planning.plan_file import plan_text


def plans_of_model(
    plan: NetworkPlan | NetworkPlanFile | str | os.PathLike[str],
    network: Network,
    procs: int,
    inference: bool = False,
) -> LayerPlans:
    """What a plan, or its file, decides about the layers of a model's `network`, which trains or infers.

    Layers with weights are found by their names. Those without weights are found by their order where the
    names differ. Raises `UsageError` where the plan is of another model or of other processes, `InputError`
    for a wrong file.
    """
    if isinstance(plan, NetworkPlan):
        name = f"the plan of {plan.network.name}"
        found, planned_procs = LayerPlans.of(plan), plan.request.procs
    else:
        if not isinstance(plan, NetworkPlanFile):
            plan = NetworkPlanFile(os.fspath(plan), parse_network_plan(plan_text(plan), os.fspath(plan)))
        name, data = plan.file, plan.data
        found, planned_procs = LayerPlans.read(data), data["procs"]
    if planned_procs != procs:
        raise UsageError(
            f"{name} is for {planned_procs} processes, but {procs} ranks run; "
            f"start as many, or plan for {procs}"
        )
    if found.margins is not None and found.resident and not inference:
        raise UsageError(
            f"{name} computes rows twice, which is of inference; give mode='inference', or plan without"
            " recompute"
        )
    found = found.renamed(_matched(network, found, name))
    for node in network.planned:
        if not inference:
            _check_gradients(node, network, found, name)
    for node in network.planned:
        _check_grid(node, found.placed[node.name].grid, name)
    return found


def _check_grid(node: Node, grid: PerAxis, name: str) -> None:
    """Raises `UsageError` where a grid has more parts along an axis than the layer has indices."""
    extents = node.layer.nest.extents if node.layer else PerAxis()
    wrong = [axis for axis, n, p in zip(AXES, extents, grid, strict=True) if p > n]
    if wrong:
        raise UsageError(
            f"{name} cuts {node.name} as {grid.shown()}, but N_{wrong[0]} is "
            f"{getattr(extents, wrong[0])}; plan this model, with this input"
        )


def _check_gradients(node: Node, network: Network, found: LayerPlans, name: str) -> None:
    """Raises `UsageError` where a layer's plan leaves out a gradient that the model trains by."""
    if not node.weighted:
        return
    needed = GRADIENTS if network.needs_input_gradient(node) else ("Ker",)
    missing = [tensor for tensor in needed if tensor not in found.gradients[node.name]]
    if missing:
        raise UsageError(
            f"{name} makes no gradient of {missing[0]} in {node.name}, which the model needs; plan this model"
        )


def _matched(network: Network, found: LayerPlans, name: str) -> dict[str, str]:
    """Layer of the model -> layer of the plan."""
    weighted = [node.name for node in network.planned if node.weighted]
    missing = [each for each in weighted if each not in found.placed]
    if missing:
        raise UsageError(f"{name} has no layer {missing[0]}, which the model has; plan this model")
    mine = [node.name for node in network.planned if not node.weighted]
    theirs = [each for each in found.placed if each not in weighted]
    if set(mine) == set(theirs):
        theirs = mine
    if len(mine) != len(theirs):
        raise UsageError(
            f"{name} has {len(theirs)} layers without weights ({', '.join(theirs) or 'none'}), but the model "
            f"{len(mine)} ({', '.join(mine) or 'none'}); plan this model"
        )
    return {**{each: each for each in weighted}, **dict(zip(mine, theirs, strict=True))}
