"""Potentials of a graph with costs of nodes and of edges: a certificate of a lower bound of every choice.

Each edge gives its ends parts of its cost, a number for each of their options. The parts of no pair of
options add up to more than the edge costs. So the least costs of all nodes, with their parts, add up to a
bound. The parts are messages of sequential tree-reweighted message passing (Kolmogorov, IEEE TPAMI 28(10),
2006). On chains and trees the bound is the optimum; on other graphs it is at most that of a relaxation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from synth.network.solve import Pairs, Table

SWEEPS = 200  # at most
BETTER = 1e-6  # of the bound: a sweep that adds less is the last one
Parts = Mapping[tuple[int, int], tuple[Table, Table]]  # (source, target) -> parts of both, by their options


def bound_of(costs: Sequence[Table], parts: Parts) -> int:
    """The bound that parts prove; all numbers are whole."""
    with_parts = [np.array(cost) for cost in costs]
    for (source, target), (one, other) in parts.items():
        with_parts[source] += one
        with_parts[target] += other
    return sum(int(each.min()) for each in with_parts)


def potentials(costs: Sequence[Table], pairs: Pairs) -> Parts:
    """Parts of a bound that is near the best one, rounded to whole numbers. Costs are whole."""
    parts = {edge: (np.zeros(len(table)), np.zeros(table.shape[1])) for edge, table in pairs.items()}
    ends: list[list[tuple[int, int]]] = [[] for _ in costs]
    for source, target in pairs:
        ends[source].append((source, target))
        ends[target].append((source, target))
    best, found = -1, dict[tuple[int, int], tuple[Table, Table]]()
    for _ in range(SWEEPS):
        for order in (range(len(costs)), range(len(costs) - 1, -1, -1)):
            for node in order:
                _pass_on(node, order.step, costs[node], pairs, parts, ends[node])
        rounded = {edge: _rounded(pairs[edge], *both) for edge, both in parts.items()}
        bound = bound_of(costs, rounded)
        last = bound <= best * (1 + BETTER)
        if bound > best:
            best, found = bound, rounded
        if last:
            break
    return found


def _pass_on(
    node: int,
    step: int,
    cost: Table,
    pairs: Pairs,
    parts: dict[tuple[int, int], tuple[Table, Table]],
    ends: Sequence[tuple[int, int]],
) -> None:
    """Give the neighbours that follow a node what it costs at least with the options that they have."""
    whole = cost + sum((parts[edge][edge[1] == node] for edge in ends), np.zeros(len(cost)))
    after = [edge for edge in ends if (sum(edge) - 2 * node) * step > 0]
    share = 1 / max(1, len(after), len(ends) - len(after))
    for edge in after:
        source = edge[0] == node
        table = pairs[edge] if source else pairs[edge].T
        mine = parts[edge][not source]
        theirs = (table + (share * whole - mine)[:, None]).min(axis=0)
        theirs -= theirs.min()
        parts[edge] = (mine, theirs) if source else (theirs, mine)


def _rounded(table: Table, one: Table, other: Table) -> tuple[Table, Table]:
    """Whole parts that add up to the cost of no pair of options, and of none to more."""
    one, other = np.floor(one + 0.5), np.floor(other + 0.5)
    one = one + (table - one[:, None] - other).min()
    other = other + (table - one[:, None] - other).min(axis=0)
    one = one + (table - one[:, None] - other).min(axis=1)
    return one, other
