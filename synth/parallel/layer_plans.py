"""What a network plan decides about the layers of a model: taken from a plan, or from its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from synth.base.errors import InputError, UsageError
from synth.layer.axes import AXES, TENSORS, PerAxis, Tensor, placement
from synth.layer.layer import Layer
from synth.layer.passes import GRADIENTS
from synth.network.graph import Network
from synth.network.planner.owned_boxes import PlacedGrid
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.plan_json import parse_network_plan, to_json
from synth.planning.plan import Plan
from synth.planning.plan_file import plan_text
from synth.schedule.distribution import Distribution
from synth.search.branch_and_bound import STATIONARY
from synth.search.training_step import choose_tilings_reusing


@dataclass(frozen=True)
class Decided:
    """Layer -> its grid and the order of its axes, the words its working memory may take, its gradients.

    limited: whether the plan was made for some memory.
    """

    placed: dict[str, PlacedGrid]
    limit_words: dict[str, int | None]
    gradients: dict[str, tuple[Tensor, ...]]
    kept: frozenset[Tensor]
    limited: bool

    @classmethod
    def of(cls, plan: NetworkPlan) -> Decided:
        """What a plan says; a plan of the forward pass alone leaves memory and what is kept open."""
        names = [node.name for node in plan.network.planned]
        limited = plan.request.training and plan.request.limit_bytes is not None
        return cls(
            dict(zip(names, plan.placed_grids, strict=True)),
            {
                name: fit.used_words if limited else None
                for name, fit in zip(names, plan.tilings, strict=True)
            },
            {name: kind.gradients for name, kind in zip(names, plan.layer_classes, strict=True)},
            plan.request.saves if plan.request.training else frozenset(TENSORS),
            limited,
        )

    def plan(self, layer: Layer, procs: int) -> Plan:
        """The training plan of a layer."""
        placed, limit_words = self.placed[layer.name], self.limit_words[layer.name]
        distribution = Distribution(layer.nest, placed.grid, placed.order)
        how = self.kept, layer.transposed, self.gradients[layer.name]
        found, _ = choose_tilings_reusing(distribution, STATIONARY, limit_words, *how)
        if found is None:  # the planner found one, but what a file says may be of another program
            raise InputError(
                f"{layer.name}: no program of the planned grid fits the planned {limit_words} words; "
                "plan anew"
            )
        first, *later = found.pass_plans
        order = placement(placed.grid, placed.order)
        limit_bytes = None if limit_words is None else limit_words * layer.nest.word_bytes
        exact = placed.grid.size == procs
        return Plan(
            layer, procs, placed.grid, first, limit_bytes, exact_procs=exact, later=tuple(later), order=order
        )


def decided_by(plan: NetworkPlan | str | os.PathLike[str], network: Network, procs: int) -> Decided:
    """What a plan or its file says of the layers of `network`, which are those of the model.

    Layers with weights are found by their names; those without, where the names are others, by their order.
    Raises `UsageError` where the plan is of another model or of other processes, `InputError` for a file.
    """
    if isinstance(plan, NetworkPlan):
        data, name = to_json(plan), f"the plan of {plan.network.name}"
        told = Decided.of(plan)
    else:
        name = os.fspath(plan)
        data = parse_network_plan(plan_text(plan), name)
        told = _read(data)
    if data["procs"] != procs:
        raise UsageError(f"{name} is for {data['procs']} processes, but {procs} ranks run; start as many")
    pairs = _matched([node.name for node in network.planned if node.weighted], network, told, name)
    _makes_what_is_needed(network, told, name)
    for node in network.planned:
        grid = told.placed[pairs[node.name]].grid
        extents = node.layer.nest.extents if node.layer else PerAxis()
        wrong = [axis for axis, n, p in zip(AXES, extents, grid, strict=True) if p > n]
        if wrong:
            raise UsageError(
                f"{name} cuts {node.name} as {grid.shown()}, but N_{wrong[0]} is "
                f"{getattr(extents, wrong[0])}; plan this model, with this input"
            )
    return Decided(
        {mine: told.placed[theirs] for mine, theirs in pairs.items()},
        {mine: told.limit_words[theirs] for mine, theirs in pairs.items()},
        {mine: told.gradients[theirs] for mine, theirs in pairs.items()},
        told.kept,
        told.limited,
    )


def _read(data: dict[str, object]) -> Decided:
    rows: Sequence[dict[str, object]] = data["layers"]  # type: ignore[assignment]
    training = data["pass"] == "training"
    lower = {tensor.lower(): tensor for tensor in TENSORS}
    kept = frozenset(lower[each] for each in data["kept"]) if training else frozenset(TENSORS)  # type: ignore[attr-defined]
    return Decided(
        {row["name"]: PlacedGrid(PerAxis(**row["grid"]), tuple(row["order"])) for row in rows},  # type: ignore
        {row["name"]: row["memory_words"] if training else None for row in rows},  # type: ignore
        {row["name"]: _gradients(row) if training else GRADIENTS for row in rows},  # type: ignore[misc]
        kept,
        data["memory_limit"] is not None,
    )


def _makes_what_is_needed(network: Network, told: Decided, name: str) -> None:
    """Raises `UsageError` where a layer's plan leaves out a gradient that the model trains by."""
    for node in (node for node in network.planned if node.weighted):
        needed = GRADIENTS if network.needs_input_gradient(node) else ("Ker",)
        missing = [tensor for tensor in needed if tensor not in told.gradients[node.name]]
        if missing:
            raise UsageError(
                f"{name} makes no gradient of {missing[0]} in {node.name}, which the model needs; "
                "plan this model"
            )


def _gradients(row: dict[str, object]) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in GRADIENTS if tensor.lower() in row["gradients"])  # type: ignore[operator]


def _matched(weighted: list[str], network: Network, told: Decided, name: str) -> dict[str, str]:
    """Layer of the model -> layer of the plan."""
    missing = [each for each in weighted if each not in told.placed]
    if missing:
        raise UsageError(f"{name} has no layer {missing[0]}, which the model has; plan this model")
    mine = [node.name for node in network.planned if not node.weighted]
    theirs = [each for each in told.placed if each not in weighted]
    if set(mine) == set(theirs):
        theirs = mine
    if len(mine) != len(theirs):
        raise UsageError(
            f"{name} has {len(theirs)} layers without weights ({', '.join(theirs) or 'none'}), but the model "
            f"{len(mine)} ({', '.join(mine) or 'none'}); plan this model"
        )
    return {**{each: each for each in weighted}, **dict(zip(mine, theirs, strict=True))}
