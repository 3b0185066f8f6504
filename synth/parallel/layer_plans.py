"""What a network plan, or its file, decides about the layers of a model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from synth.base.errors import InputError, UsageError
from synth.layer.axes import AXES, TENSORS, Axis, PerAxis, Tensor, placement
from synth.layer.layer import Layer
from synth.layer.passes import GRADIENTS
from synth.network.graph import Network, Node
from synth.network.planner.layer_class import LayerClass
from synth.network.planner.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.plan_json import parse_network_plan
from synth.planning.plan import Plan
from synth.planning.plan_file import plan_text
from synth.schedule.distribution import Distribution
from synth.search.branch_and_bound import STATIONARY
from synth.search.training_step import choose_tilings_reusing

Ranks = tuple[tuple[tuple[int, int], ...], ...]  # per rank a box: an interval per dimension


@dataclass(frozen=True)
class LayerPlans:
    """Per layer of a network: its grid with the order of its axes, memory and gradients.

    limit_words: what the working memory of a layer may take; None where nothing limits it.
    saves: tensors that a pass gathers once and saves for a later pass.
    limited: whether the plan was made for a memory limit.
    """

    placed: dict[str, PlacedGrid]
    limit_words: dict[str, int | None]
    gradients: dict[str, tuple[Tensor, ...]]
    saves: frozenset[Tensor]
    limited: bool

    @classmethod
    def of(cls, plan: NetworkPlan) -> LayerPlans:
        """What a plan decides. A plan of the forward pass alone leaves memory and `saves` open."""
        names = [node.name for node in plan.network.planned]
        limited = plan.request.training and plan.request.limit_bytes is not None
        return cls(
            dict(zip(names, plan.placed_grids, strict=True)),
            {n: each.used_words if limited else None for n, each in zip(names, plan.tilings, strict=True)},
            {n: each.gradients for n, each in zip(names, plan.layer_classes, strict=True)},
            plan.request.saves if plan.request.training else frozenset(TENSORS),
            limited,
        )

    @classmethod
    def read(cls, data: dict[str, Any]) -> LayerPlans:
        """What a plan file decides; `data` as `parse_network_plan` gives it."""
        rows = msgspec.convert(data["layers"], list[_Row])
        training = data["pass"] == "training"
        lower = {tensor.lower(): tensor for tensor in TENSORS}
        return cls(
            {row.name: PlacedGrid(PerAxis(**row.grid), row.order) for row in rows},
            {row.name: row.memory_words if training else None for row in rows},
            {row.name: row.made if training else GRADIENTS for row in rows},
            frozenset(lower[each] for each in data["kept"]) if training else frozenset(TENSORS),
            data["memory_limit"] is not None,
        )

    def renamed(self, pairs: Mapping[str, str]) -> LayerPlans:
        """The same by other names: new name -> name here."""
        return LayerPlans(
            {mine: self.placed[theirs] for mine, theirs in pairs.items()},
            {mine: self.limit_words[theirs] for mine, theirs in pairs.items()},
            {mine: self.gradients[theirs] for mine, theirs in pairs.items()},
            self.saves,
            self.limited,
        )

    def plan(self, layer: Layer, procs: int) -> Plan:
        """The training plan of a layer. Raises `InputError` where nothing fits the planned memory."""
        placed, limit_words = self.placed[layer.name], self.limit_words[layer.name]
        distribution = Distribution(layer.nest, placed.grid, placed.order)
        training = self.saves, layer.transposed, self.gradients[layer.name]
        found, _ = choose_tilings_reusing(distribution, STATIONARY, limit_words, *training)
        if found is None:  # the planner found one, but a file may be of another program
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

    def boxes(self, node: Node, procs: int) -> tuple[Ranks, Ranks] | None:
        """What each rank owns of the input and of the output of a layer without weights.

        None where that is not all of the input: In of a nest has the rows that are read and no others.
        """
        assert node.layer is not None
        boxes = OwnedBoxes(node.layer.nest, [self.placed[node.name]], procs)
        dims = [0, 1, *range(7 - len(node.in_shape), 5)]
        result = []
        kind = LayerClass.of(node)
        ends = (kind.input_tensor, node.in_shape), (kind.output_tensor, node.shape)
        for tensor, whole in ends:
            low, high, _ = boxes.flat(tensor)
            cuts = [
                (np.minimum(low[dim, 0], size), np.minimum(high[dim, 0], size))  # a last window may exceed it
                for dim, size in zip(dims, whole, strict=True)
            ]
            words = np.prod([after - before for before, after in cuts], axis=0, dtype=np.int64)
            if int(words.sum()) != math.prod(whole):
                return None
            result.append(tuple(tuple((int(a[r]), int(b[r])) for a, b in cuts) for r in range(procs)))
        return result[0], result[1]


class _Row(msgspec.Struct):
    """A layer in a plan file."""

    name: str
    grid: dict[str, int]
    order: tuple[Axis, ...]
    memory_words: int | None
    gradients: list[str]

    @property
    def made(self) -> tuple[Tensor, ...]:
        """The gradients that a training step makes."""
        return tuple(tensor for tensor in GRADIENTS if tensor.lower() in self.gradients)


def plans_of_model(plan: NetworkPlan | str | os.PathLike[str], network: Network, procs: int) -> LayerPlans:
    """What a plan, or its file, decides about the layers of a model's `network`.

    Layers with weights are found by their names. Those without weights are found by their order where the
    names differ. Raises `UsageError` where the plan is of another model or of other processes, `InputError`
    for a wrong file.
    """
    if isinstance(plan, NetworkPlan):
        name = f"the plan of {plan.network.name}"
        found, planned_procs = LayerPlans.of(plan), plan.request.procs
    else:
        name = os.fspath(plan)
        data = parse_network_plan(plan_text(plan), name)
        found, planned_procs = LayerPlans.read(data), data["procs"]
    if planned_procs != procs:
        raise UsageError(f"{name} is for {planned_procs} processes, but {procs} ranks run; start as many")
    found = found.renamed(_matched(network, found, name))
    for node in network.planned:
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
