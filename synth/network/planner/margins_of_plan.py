"""Margins for the grids of a plan: rows that ranks compute as well, so that fewer words move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from synth.layer.axes import AXES, X_AXES, PerAxis
from synth.network.graph import Node
from synth.network.grids.grid_table import grids_of
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.margins.choose import Choice, choose_cuts, evaluated
from synth.network.margins.margins import Margins
from synth.network.margins.row_graph import RowGraph, row_graph
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.candidates import GridCandidates

MOST_GRIDS = 12  # that are compared without margins


def with_margins(plan: NetworkPlan, turned: Mapping[str, tuple[PlacedGrid, int]]) -> NetworkPlan:
    """A plan with the margins that move the fewest words on its grids.

    turned: layer -> its grid cut by input rows, and the words that it receives then, where these are fewer.
    """
    network, recompute, procs = plan.network, plan.request.recompute, plan.request.procs
    plain = tuple(replace(each, turned=()) for each in plan.placed_grids)
    graph = row_graph(network, plain, procs)
    if not _covered(graph):
        return plan
    without = evaluated(graph, {})
    work = float(without.walked.own_work().max())
    chosen = _chosen(plan, graph, turned, recompute * work)
    if chosen is None:
        return plan
    choice, placed, graph = chosen
    covered = _covered(graph)
    costs = list(plan.layer_costs)
    for i, node in enumerate(network.planned):
        if node.name in choice.turned:
            costs[i] = turned[node.name][1]
        elif node.name in covered:
            costs[i] = 0
    kept = {edge: not network.makers(edge) <= covered for edge in plan.edge_words}
    found = evaluated(graph, choice.rows, choice.exact)
    made = replace(
        plan,
        placed_grids=tuple(placed),
        layer_costs=tuple(costs),
        edge_costs={edge: cost if kept[edge] else 0.0 for edge, cost in plan.edge_costs.items()},
        edge_words={edge: words if kept[edge] else 0 for edge, words in plan.edge_words.items()},
    )
    margins = Margins(
        recompute=recompute,
        rows=found.rows,
        words=found.words,
        extra_work=float(found.walked.extra_work().max()) / work if work else 0.0,
        rounds=found.walked.rounds(network, _exchanging(made)),
        rounds_before=without.walked.rounds(network, _exchanging(made) - choice.turned),
        words_before=without.cost,
        exact=choice.exact,
        held=tuple(found.walked.held_words().tolist()),
        layers=frozenset(node.name for node in network.planned if node.name in covered),
    )
    return replace(made, margins=margins)


def _covered(graph: RowGraph) -> set[str]:
    return {name for name, tensor in graph.items() if tensor.covered}


def _chosen(
    plan: NetworkPlan, graph: RowGraph, turned: Mapping[str, tuple[PlacedGrid, int]], work: float
) -> tuple[Choice, list[PlacedGrid], RowGraph] | None:
    """The choice, the grids of all layers, and their tensors; None where rows of some layer become unknown.

    A layer that is cut by input rows may leave tensors behind it, or the input, without known rows. Then no
    layer is cut so.
    """
    network, covered = plan.network, _covered(graph)
    for options in (_by_input_rows(plan, turned, covered), {}):
        choice = choose_cuts(graph, work, options)
        placed = list(plan.placed_grids)
        for i, node in enumerate(network.planned):
            if node.name in choice.turned:
                placed[i] = turned[node.name][0]
            elif node.name in covered:
                placed[i] = replace(placed[i], turned=())
        made = row_graph(network, placed, plan.request.procs)
        if _covered(made) == covered - choice.turned:
            return choice, placed, made
    return None


def _by_input_rows(
    plan: NetworkPlan, turned: Mapping[str, tuple[PlacedGrid, int]], covered: Set[str]
) -> dict[str, int]:
    """Covered layer -> the words that it and its input move where it is cut by input rows instead."""
    nodes = [node for node in plan.network.planned if node.name in turned.keys() & covered]
    return {
        node.name: turned[node.name][1] + _moved_to(node, plan)
        for node in nodes
        if node.layer is not None and node.layer.groups == 1
    }


def _exchanging(plan: NetworkPlan) -> set[str]:
    """The layers that receive words themselves."""
    pairs = zip(plan.network.planned, plan.layer_costs, strict=True)
    return {node.name for node, cost in pairs if cost} | {
        e.target for e, words in plan.edge_words.items() if words
    }


def _moved_to(node: Node, plan: NetworkPlan) -> int:
    """Words with which the input of a layer is redistributed."""
    edges = plan.edge_words.items()
    return sum(words for edge, words in edges if edge.target == node.name and edge.role == "in")


def row_grids(candidates: Sequence[GridCandidates], layers: Sequence[int]) -> list[PerAxis]:
    """The grids of all processes that cut samples and positions alone, of layers of more than one position.

    Those that most layers admit come first.
    """
    axes = np.array([axis in X_AXES for axis in AXES])
    counts: dict[PerAxis, int] = {}
    for each, number in zip(candidates, layers, strict=True):
        rows = each.grids.rows
        full = (rows.prod(axis=1) == each.request.procs) & (rows[:, ~axes] == 1).all(axis=1)
        for grid in grids_of(rows[full]):
            counts[grid] = counts.get(grid, 0) + number
    return sorted(counts, key=lambda grid: (-counts[grid], grid))[:MOST_GRIDS]
