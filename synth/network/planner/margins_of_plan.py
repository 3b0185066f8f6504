"""Margins for the grids of a plan: rows that ranks compute as well, so that fewer words move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from synth.layer.axes import AXES, X_AXES, PerAxis
from synth.network.graph import Edge, Node
from synth.network.grids.grid_table import grids_of
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.margins.choose import CHOICES, Choice, Chosen, choose_cuts, evaluated
from synth.network.margins.margins import Margins
from synth.network.margins.prices import SecondPrices, WordPrices
from synth.network.margins.row_graph import RowGraph, row_graph
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.step_words import words_by_tensor
from synth.network.planner.candidates import GridCandidates
from synth.network.planner.timed_steps import TimedSteps

MOST_GRIDS = 12  # that are compared without margins
NEAR = 1.03  # words of a plan in fewer rounds over the fewest


def with_margins(
    plan: NetworkPlan,
    turned: Mapping[str, tuple[PlacedGrid, float]],
    steps: TimedSteps | None = None,
    tried: Sequence[int] = CHOICES,
    exchange: float = 0.0,
    below: float = math.inf,
) -> NetworkPlan:
    """A plan with the margins of the least cost on its grids.

    It is as it was where no margins can cost less than `below`.

    turned: layer -> its grid cut by input rows, and its cost, where that is less. steps: the seconds of
    layers, of a plan for time. tried: rows of margins. exchange: words that an exchange counts for beside its
    own, while margins are chosen for words.
    """
    network, request = plan.network, plan.request
    plain = tuple(replace(each, turned=()) for each in plan.placed_grids)
    graph = row_graph(network, plain, request.procs)
    graded = _graded(plan, graph)
    covered = _covered(graph)
    costs: _Costs
    if steps is None:
        costs = _Words(plan, exchange, graded, covered)
    else:
        costs = _Seconds(plan, steps, covered, graded)
    by_input_rows = _by_input_rows(plan, turned, covered, costs)
    if not covered or _least(plan, costs, by_input_rows, covered) >= below:
        return plan
    without = evaluated(graph, {}, graded=graded)
    if not without.cost:
        return plan
    work = float(without.walked.own_work().max())
    limit = request.most_recompute * work if request.most_recompute < math.inf else math.inf
    chosen = _chosen(plan, graph, turned, by_input_rows, limit, costs, tried)
    if chosen is None:
        return plan
    choice, placed, graph = chosen
    covered = _covered(graph)
    found = evaluated(graph, choice.rows, choice.exact and not graded, graded)
    kept = {edge: not network.makers(edge) <= covered for edge in plan.edge_words}
    made = replace(
        plan,
        placed_grids=tuple(placed),
        edge_costs={edge: cost if kept[edge] else 0.0 for edge, cost in plan.edge_costs.items()},
        edge_words={edge: words if kept[edge] else 0 for edge, words in plan.edge_words.items()},
    )
    made = costs.layers(made, found, choice, turned)
    exchanging = _exchanging(made, covered)
    margins = Margins(
        recompute=request.recompute,
        rows=found.rows,
        words=found.words,
        extra_work=float(found.walked.extra_work().max()) / work if work else 0.0,
        rounds=found.walked.rounds(network, exchanging),
        rounds_before=without.walked.rounds(network, exchanging - choice.turned),
        words_before=without.cost,
        exact=found.exact,
        seconds=costs.fetching(found),
        layers=frozenset(node.name for node in network.planned if node.name in covered),
        back=found.back,
    )
    return replace(made, margins=margins)


def _graded(plan: NetworkPlan, graph: RowGraph) -> frozenset[str]:
    """The tensors whose gradients return to their owners."""
    if not plan.request.training:
        return frozenset()
    return frozenset(graph) if plan.request.input_gradient else plan.network.trained


def _least(plan: NetworkPlan, costs: _Costs, by_input_rows: Mapping[str, float], covered: Set[str]) -> float:
    """What layers and redistributions cost if rows of others were known for nothing."""
    layers = sum(map(costs.alone, range(len(plan.placed_grids))))
    edges = sum(costs.moved(edge) for edge in plan.edge_words if not plan.network.makers(edge) <= covered)
    return layers + edges + sum(min(0.0, more) for more in by_input_rows.values())


class _Words:
    """Words that are received: a covered layer itself receives none but those of its weights in training."""

    def __init__(self, plan: NetworkPlan, exchange: float, graded: frozenset[str], covered: Set[str]) -> None:
        self.plan, self.prices, self.covered = plan, WordPrices(exchange, graded), covered
        self.place = {node.name: i for i, node in enumerate(plan.network.planned)}

    def alone(self, place: int) -> float:
        """Words of weights of a covered layer, all words of others."""
        name = self.plan.network.planned[place].name
        return self.weights(name) if name in self.covered else self.plan.layer_costs[place]

    def weights(self, name: str) -> float:
        """Words of the weights of a layer, cut by output rows."""
        plan, i = self.plan, self.place[name]
        placed = replace(plan.placed_grids[i], turned=())
        return words_by_tensor(plan.layer_classes[i], placed, plan.tilings[i], plan, False, True)["ker"]

    def more_by_input_rows(self, name: str, placed: PlacedGrid, words: float) -> float:
        """Its words, in an exchange, less those of weights."""
        return words - self.weights(name) + self.prices.exchange

    def moved(self, edge: Edge) -> float:
        """Words."""
        return self.plan.edge_words[edge]

    def fetching(self, found: Chosen) -> dict[str, float]:
        """Nothing: no seconds are known."""
        return {}

    def layers(
        self,
        made: NetworkPlan,
        found: Chosen,
        choice: Choice,
        turned: Mapping[str, tuple[PlacedGrid, float]],
    ) -> NetworkPlan:
        """Those by input rows have their words."""
        costs, covered = list(made.layer_costs), _covered(found.walked.graph)
        for i, name, by_input_rows in _changed(made, choice, covered):
            costs[i] = turned[name][1] if by_input_rows else self.weights(name)
        return replace(made, layer_costs=tuple(costs))


class _Seconds:
    """Seconds of computing own rows and those of others, of exchanges, and of what follows layers."""

    def __init__(
        self, plan: NetworkPlan, steps: TimedSteps, covered: Set[str], graded: frozenset[str]
    ) -> None:
        machine, training = plan.request.machine, plan.request.training
        assert machine is not None
        names = [node.name for node in plan.network.planned]
        kinds = zip(names, plan.layer_classes, strict=True)
        passes = {name: kind.passes(True) for name, kind in kinds} if training else None
        self.plan, self.steps = plan, steps
        self.prices = SecondPrices(plan.network, machine, passes, graded)
        self.plain = [replace(each, turned=()) for each in plan.placed_grids]
        self.place = {name: i for i, name in enumerate(names)}
        self.covered = {self.place[name] for name in covered if name in self.place}
        self.layers_alone = steps.with_margins(self.plain, self.covered, plan.whole)

    def alone(self, place: int) -> float:
        """Seconds of the own rows."""
        return self.layers_alone[place].total

    def more_by_input_rows(self, name: str, placed: PlacedGrid, words: float) -> float:
        """Seconds by input rows less those of the own rows."""
        at = self.place[name]
        grids = [*self.plain]
        grids[at] = placed
        others = self.covered - {at}
        return self.steps.with_margins(grids, others, self.plan.whole)[at].total - self.alone(at)

    def moved(self, edge: Edge) -> float:
        """Seconds."""
        return self.plan.edge_costs[edge]

    def fetching(self, found: Chosen) -> dict[str, float]:
        """Tensor -> seconds of its exchange."""
        boxes = found.walked.boxes
        graph = found.walked.graph
        return {name: float(self.prices.fetching(graph[name], *boxes[name])[0]) for name in found.words}

    def layers(
        self,
        made: NetworkPlan,
        found: Chosen,
        choice: Choice,
        turned: Mapping[str, tuple[PlacedGrid, float]],
    ) -> NetworkPlan:
        """Covered layers exchange nothing; seconds of rows of others count with the layer before them."""
        assert made.timed is not None
        network, graph = made.network, found.walked.graph
        covered = {self.place[name] for name in _covered(graph) if name in self.place}
        layers = self.steps.with_margins(made.placed_grids, covered, made.whole)
        for name, tensor in graph.items():
            layer = network.parts[name][0].node
            if tensor.covered and layer is not None:
                more, back = self.prices.computed(tensor, found.walked.boxes[name].computed)
                each = layers[self.place[layer]]
                wider = replace(
                    each, forward=each.forward + float(more[0]), backward=each.backward + float(back[0])
                )
                layers[self.place[layer]] = wider
        whole = self.steps.whole_with_margins(covered, made.whole)
        timed = replace(made.timed, layers=tuple(layers), whole=whole)
        return replace(made, timed=timed, layer_costs=tuple(each.total for each in layers))


_Costs = _Words | _Seconds  # what a plan with margins costs


def _changed(plan: NetworkPlan, choice: Choice, covered: Set[str]) -> Iterator[tuple[int, str, bool]]:
    """Place and name of each layer whose grid is chosen with margins, and whether it is cut by input rows."""
    for i, node in enumerate(plan.network.planned):
        if node.name in choice.turned or node.name in covered:
            yield i, node.name, node.name in choice.turned


def _covered(graph: RowGraph) -> set[str]:
    return {name for name, tensor in graph.items() if tensor.covered}


def _chosen(
    plan: NetworkPlan,
    graph: RowGraph,
    turned: Mapping[str, tuple[PlacedGrid, float]],
    more: Mapping[str, float],
    work: float,
    costs: _Costs,
    tried: Sequence[int],
) -> tuple[Choice, list[PlacedGrid], RowGraph] | None:
    """The choice, the grids of all layers, and their tensors; None where rows of some layer become unknown.

    more: what layers cost more where they are cut by input rows.

    A layer that is cut by input rows may leave tensors behind it, or the input, without known rows. Then no
    layer is cut so.
    """
    network, covered = plan.network, _covered(graph)
    for options in (more, {}):
        choice = choose_cuts(graph, work, options, tried, costs.prices)
        placed = list(plan.placed_grids)
        for i, name, by_input_rows in _changed(plan, choice, covered):
            placed[i] = turned[name][0] if by_input_rows else replace(placed[i], turned=())
        made = row_graph(network, placed, plan.request.procs)
        if _covered(made) == covered - choice.turned:
            return choice, placed, made
    return None


def _by_input_rows(
    plan: NetworkPlan,
    turned: Mapping[str, tuple[PlacedGrid, float]],
    covered: Set[str],
    costs: _Costs,
) -> dict[str, float]:
    """Covered layer -> what it and its input cost more where it is cut by input rows instead."""
    nodes = [node for node in plan.network.planned if node.name in turned.keys() & covered]
    return {
        node.name: costs.more_by_input_rows(node.name, *turned[node.name]) + _moved_to(node, plan, costs)
        for node in nodes
        if node.layer is not None and node.layer.groups == 1
    }


def _exchanging(plan: NetworkPlan, covered: Set[str]) -> set[str]:
    """The layers without margins that receive words themselves."""
    found = {edge.target for edge, words in plan.edge_words.items() if words}
    if plan.timed is None:
        pairs = zip(plan.network.planned, plan.layer_costs, strict=True)
        return found | {node.name for node, words in pairs if words and node.name not in covered}
    rows = zip(plan.network.planned, plan.layer_classes, plan.placed_grids, plan.tilings, strict=True)
    for node, kind, placed, tiling in rows:
        if node.name not in covered and any(words_by_tensor(kind, placed, tiling, plan, False).values()):
            found.add(node.name)
    return found


def _moved_to(node: Node, plan: NetworkPlan, costs: _Costs) -> float:
    """What the redistribution of the input of a layer costs."""
    edges = plan.edge_words
    return sum(costs.moved(edge) for edge in edges if edge.target == node.name and edge.role == "in")


def has_many_rounds(plan: NetworkPlan) -> bool:
    """Whether margins leave more than half of the rounds of exchanges."""
    return plan.margins is not None and 2 * plan.margins.rounds > plan.margins.rounds_before


def fewer_rounds(plan: NetworkPlan, others: Sequence[NetworkPlan]) -> NetworkPlan:
    """The plan of the fewest rounds of exchanges among one with margins and others with nearly its words."""

    def rounds(each: NetworkPlan) -> tuple[int, float]:
        return 0 if each.margins is None else each.margins.rounds, each.cost

    near = [each for each in others if each.margins is not None and each.cost <= NEAR * plan.cost]
    best = min([plan, *near], key=rounds)
    if best is plan or best.margins is None:
        return plan
    return replace(best, margins=replace(best.margins, above=best.cost / plan.cost - 1))


def row_grids(candidates: Sequence[GridCandidates], layers: Sequence[int]) -> list[PerAxis]:
    """The grids of all processes that cut samples and positions alone, of layers of more than one position.

    Along the requested axes, if there are some. Those that most layers admit come first.
    """
    within = candidates[0].request.axes or X_AXES
    axes = np.array([axis in X_AXES and axis in within for axis in AXES])
    counts: dict[PerAxis, int] = {}
    for each, number in zip(candidates, layers, strict=True):
        rows = each.grids.rows
        full = (rows.prod(axis=1) == each.request.procs) & (rows[:, ~axes] == 1).all(axis=1)
        for grid in grids_of(rows[full]):
            counts[grid] = counts.get(grid, 0) + number
    return sorted(counts, key=lambda grid: (-counts[grid], grid))[:MOST_GRIDS]
