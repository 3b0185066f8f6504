"""The fewest words of any plan of the family: a lower bound, and where it is attained, such a plan.

A plan of the family takes any grid of each layer. The choice among all of them is a shortest path on a chain,
and an elimination of variables on other graphs. Few grids can be part of a plan that moves fewer words than a
known one, so the others are left out first:

    1  layers alone         least words of a grid (`word_bounds`), beside the least of every other layer
    2  a few ranks          redistributions counted on some ranks, along a forest of edges (`network.forest`)
    3  all ranks            exact words of the remaining grids and of their redistributions
    4  the whole graph      the best of what remains (`solve.narrow`)

Every number before the last one is a lower bound of the plans that have some grid. Where too many grids
remain after the first step, those with a larger number are one option together: it has the least words of
any of them, and redistributions to and from it count nothing. Where too many remain after a later step, those
with a larger number are left out, and the bound is at most the least number among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synth.network.edges.edge_prices import EdgePrices, PricedEdges
from synth.network.forest import least_of_forest
from synth.network.graph import Network
from synth.network.grids.box_rows import Array, distinct
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import GridDistributions, PlacedGrid
from synth.network.planner.candidates import GridCandidates
from synth.network.planner.counted_grids import count_words, know_words
from synth.network.request import NetworkRequest
from synth.network.solve import Pairs, Table, narrow

FEW_RANKS = 4  # ranks on which redistributions are counted first
MOST_WORDS = 1 << 23  # pairs of options times ranks that are counted at once, at most
MOST_OPTIONS = (
    2200  # options of all layers at once, at most: with them the search takes some tenths of a second
)
LESS = 0.85  # where there are too many options, those remain that may add less to the bound, by this factor
STEPS = 40  # so often at most: to a thousandth
EQUAL = 1e-9  # costs that differ by so small a fraction are equal


@dataclass(frozen=True)
class FamilyOptimum:
    """words: no plan of the family moves fewer. placed: layer -> its grid in such a plan, if one is known."""

    words: float
    placed: tuple[PlacedGrid, ...] | None = None


class FamilySearch:
    """The search for the optimum of one network. class_of: layer -> the position of its class."""

    def __init__(
        self,
        network: Network,
        request: NetworkRequest,
        classes: Sequence[LayerClass],
        class_of: Sequence[int],
        candidates: Sequence[GridCandidates],
        prices: EdgePrices,
        distributions: Sequence[GridDistributions],
    ) -> None:
        self.class_of, self.candidates, self.procs = class_of, candidates, request.procs
        self.prices = prices
        ranks = distinct(np.linspace(0, request.procs - 1, FEW_RANKS).astype(np.int32))
        self.on_few = EdgePrices(network, request, classes, class_of, distributions, ranks)
        self.position = {node.name: i for i, node in enumerate(network.planned)}
        # by class, the options that layers alone do not leave out
        self.looked_at: list[list[PlacedGrid]] = [[] for _ in classes]
        self.kinds = {
            (class_of[self.position[edge.source]], class_of[self.position[edge.target]])
            for edge in network.edges
        }

    def optimum(self, cost: float) -> FamilyOptimum:
        """The optimum, given the words of a plan of the family."""
        alone = math.fsum(self.candidates[k].proven_least() for k in self.class_of)
        if alone >= cost * (1 - EQUAL):
            return FamilyOptimum(min(alone, cost))
        places = self._kept_alone(cost - alone)
        if places is None:
            return FamilyOptimum(alone)
        placed = [
            [option for grid in each.grids.grids(some) for option in each.ordered(grid)]
            for each, some in zip(self.candidates, places, strict=True)
        ]
        others = self._least_of_others(places)
        self.looked_at, left_out = placed, cost
        for ranks in (FEW_RANKS, self.procs):
            bound, rows = self._forest(*self._tables(placed, others, self.on_few))
            if bound >= left_out:
                return FamilyOptimum(left_out)
            kept, left_out = self._kept(self._of_classes(rows), bound, left_out, ranks)
            if kept is None:
                return FamilyOptimum(bound)
            others = [
                each if at.size and at[-1] == len(row) else math.inf
                for each, at, row in zip(others, kept, placed, strict=True)
            ]
            placed = self._counted(
                [[row[i] for i in at if i < len(row)] for row, at in zip(placed, kept, strict=True)]
            )
        return self._exact(placed, others, left_out)

    def _exact(
        self, placed: Sequence[Sequence[PlacedGrid]], others: Sequence[float], left_out: float
    ) -> FamilyOptimum:
        """The optimum over the remaining grids, with exact costs of layers and of redistributions."""
        costs, pairs = self._tables(placed, others, self.prices)
        bound, rows = self._forest(costs, pairs)
        if bound >= left_out:
            return FamilyOptimum(left_out)
        kept = [np.flatnonzero(row <= (left_out - bound) * (1 + EQUAL)) for row in rows]
        some = {(a, b): table[np.ix_(kept[a], kept[b])] for (a, b), table in pairs.items()}
        found = narrow([cost[at] for cost, at in zip(costs, kept, strict=True)], some)
        if found is None:
            return FamilyOptimum(bound)
        if found.cost > left_out:
            return FamilyOptimum(left_out)
        rest = zip(self.class_of, kept, found.chosen, strict=True)
        chosen = [(placed[k], int(at[option])) for k, at, option in rest]
        if any(place == len(row) for row, place in chosen):
            return FamilyOptimum(found.cost)
        return FamilyOptimum(found.cost, tuple(row[place] for row, place in chosen))

    def _forest(self, costs: Sequence[Table], pairs: Pairs) -> tuple[float, list[Table]]:
        """`least_of_forest` of the edges that move most."""
        heavy = sorted(pairs, key=lambda pair: -float(pairs[pair].mean()))
        return least_of_forest(costs, {pair: pairs[pair] for pair in heavy})

    def _of_classes(self, rows: Sequence[Table]) -> list[Table]:
        """Class -> the least of its layers, from layer -> a number of each of its options."""
        found: dict[int, Table] = {}
        for k, row in zip(self.class_of, rows, strict=True):
            found[k] = np.minimum(found[k], row) if k in found else row
        return [found[k] for k in range(len(found))]

    def _kept(
        self, more: Sequence[Table], bound: float, left_out: float, ranks: int
    ) -> tuple[list[Array] | None, float]:
        """(class -> the options that are kept, what plans with another one move at least).

        None and the bound where too many options add nothing to it.

        more: class -> what an option adds at least to a bound of all plans. left_out: what plans move at
        least that are left out already. ranks: on which pairs of options are counted next.
        """
        for step in range(STEPS):
            slack = (left_out - bound) * LESS**step
            kept = self._within(more, slack, ranks)
            if kept is not None:
                return kept, bound + slack
        return None, bound

    def _within(self, more: Sequence[Table], slack: float, ranks: int) -> list[Array] | None:
        """Class -> the options that add no more than a slack to a bound; None if these are too many."""
        kept = [np.flatnonzero(row <= slack * (1 + EQUAL)) for row in more]
        pairs = sum(len(kept[a]) * len(kept[b]) for a, b in self.kinds)
        few = sum(map(len, kept)) <= MOST_OPTIONS and pairs * ranks <= MOST_WORDS
        return kept if few else None

    def _kept_alone(self, most: float) -> list[Array] | None:
        """`_kept` of layers alone: the places of grids. The slack grows, as bounds of few grids are known.

        most: what a plan that moves fewer words than a known one adds at most.
        """
        found = None
        for step in reversed(range(STEPS)):
            slack = most * LESS**step
            below = [each.proven_least() + slack * (1 + 2 * EQUAL) for each in self.candidates]
            rows = zip(self._least(below), self.candidates, strict=True)
            kept = self._within([row - each.proven_least() for row, each in rows], slack, FEW_RANKS)
            if kept is None:
                break
            found = kept
        return found

    def _least_of_others(self, places: Sequence[Array]) -> list[float]:
        """By class, the least words of the grids at other places; infinite if there are none."""
        least, below = [0.0] * len(places), list[float]()
        while least != below:  # grids with higher bounds have more words
            below = least
            rows = zip(self._least(below), places, strict=True)
            least = [float(np.delete(row, some).min(initial=math.inf)) for row, some in rows]
        return least

    def _least(self, below: Sequence[float]) -> list[Array]:
        """By class, what its grids receive at least; see `GridCandidates.known_least`."""
        rows = list(zip(self.candidates, below, strict=True))
        know_words({each.counted: each.counted.places_below(bound) for each, bound in rows})
        return [each.known_least(bound) for each, bound in rows]

    def _counted(self, placed: Sequence[Sequence[PlacedGrid]]) -> list[list[PlacedGrid]]:
        """The same options with exact words, in the cut of rows that moves the fewest."""
        rows = zip(self.candidates, placed, strict=True)
        count_words({each.counted: [option.grid for option in row] for each, row in rows})
        return [list(map(each.cut, row)) for each, row in zip(self.candidates, placed, strict=True)]

    def _tables(
        self, placed: Sequence[Sequence[PlacedGrid]], others: Sequence[float], prices: EdgePrices
    ) -> tuple[list[Table], dict[tuple[int, int], Table]]:
        """(costs of layers, costs of pairs of layers) by options, exact or lower bounds.

        others: by class, the least words of all grids that are no options; the last option stands for them.
        """
        rows = [
            np.array([each.least_of(option.grid) for option in row], float)
            for each, row in zip(self.candidates, placed, strict=True)
        ]
        costs, pairs = with_edges([rows[k] for k in self.class_of], prices.of(placed), self.position)
        with_others = [np.append(cost, others[k]) for k, cost in zip(self.class_of, costs, strict=True)]
        return with_others, {ends: np.pad(table, (0, 1)) for ends, table in pairs.items()}


def with_edges(
    costs: Sequence[Table], priced: PricedEdges, position: dict[str, int]
) -> tuple[list[Table], dict[tuple[int, int], Table]]:
    """(costs of layers, costs of pairs of layers) by options, from those of layers and of edges."""
    found: list[Table] = list(costs)
    pairs: dict[tuple[int, int], Table] = {}
    for edge, (_, cost) in priced.items():
        source, target = position[edge.source], position[edge.target]
        if source == target:
            found[source] = found[source] + np.diag(cost)
            continue
        pairs[source, target] = pairs[source, target] + cost if (source, target) in pairs else cost
    return found, pairs
