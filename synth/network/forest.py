"""The cheapest choice of an option per node over a forest of a graph's edges: a lower bound for the graph.

Other edges count nothing. The least cost is found exactly, from the leaves on; with a second walk, from the
roots on, also the least cost of the choices that have some option of some node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from synth.network.solve import Table

Edges = Mapping[tuple[int, int], Table]  # (node, other node) -> cost by their options
TOGETHER = 64  # options of a node whose pairs with those of another are looked at together
Order = list[tuple[int, int]]
Options = NDArray[np.intp]


@dataclass(frozen=True)
class LazyTable:
    """Costs by the options of two nodes, none below 0, computed for the pairs that are asked for.

    shape: the number of options of each node. at: (some of one, some of the other) -> their table.
    """

    shape: tuple[int, int]
    at: Callable[[Options, Options], Table]

    @property
    def T(self) -> LazyTable:  # noqa: N802 - as of an array
        """The same by the options of the other node and of this one."""
        return LazyTable(self.shape[::-1], lambda some, others: self.at(others, some).T)

    def cheapest(self, costs: Table) -> Table:
        """For each option of the other node: min over this node's options of `costs` plus the pair's cost.

        costs: of this node's options. They are tried in ascending order. As no pair costs less than 0, the
        search ends where an option alone costs as much as the best sum.
        """
        found, still = np.full(self.shape[1], np.inf), np.arange(self.shape[1])
        order = np.argsort(costs, kind="stable")
        for first in range(0, len(order), TOGETHER):
            some = order[first : first + TOGETHER]
            still = still[found[still] > costs[some[0]]]
            if not len(still):
                break
            sums = self.at(some, still) + costs[some, None]
            found[still] = np.minimum(found[still], sums.min(axis=0))
        return found


AnyTable = TypeVar("AnyTable", Table, LazyTable)


def least_of_forest(costs: Sequence[Table], edges: Edges) -> tuple[float, list[Table]]:
    """(The least sum of costs of nodes and edges, node -> what each of its options adds to it at least).

    costs: by node and option. edges: those that would close a cycle with edges before them are left out.
    """
    near = _forest(len(costs), edges)
    least, more = 0.0, list(costs)
    for order in _trees(near):
        root = order[0][0]
        up, whole = dict[int, Table](), {node: np.array(costs[node], float) for node, _ in order}
        for node, parent in reversed(order[1:]):
            up[node] = (near[node][parent] + whole[node][:, None]).min(axis=0)
            whole[parent] = whole[parent] + up[node]
        for node, parent in order[1:]:
            beside = whole[parent] - up[node]
            whole[node] = whole[node] + (near[parent][node] + beside[:, None]).min(axis=0)
        best = float(whole[root].min())
        least += best
        for node, table in whole.items():
            more[node] = table - best
    return least, more


def least_sum(costs: Sequence[Table], edges: Mapping[tuple[int, int], LazyTable]) -> float:
    """The least sum of costs of nodes and edges that `least_of_forest` gives, from costs of few pairs."""
    near, least = _forest(len(costs), edges), 0.0
    for order in _trees(near):
        whole = {node: costs[node] for node, _ in order}
        for node, parent in reversed(order[1:]):
            whole[parent] = whole[parent] + near[node][parent].cheapest(whole[node])
        least += float(whole[order[0][0]].min())
    return least


def _forest(nodes: int, edges: Mapping[tuple[int, int], AnyTable]) -> list[dict[int, AnyTable]]:
    """Node -> its neighbours in a forest, with the costs by its options and theirs."""
    tree = list(range(nodes))

    def root(node: int) -> int:
        while tree[node] != node:
            node = tree[node]
        return node

    near: list[dict[int, AnyTable]] = [{} for _ in range(nodes)]
    for (one, other), table in edges.items():
        if root(one) != root(other):
            tree[root(one)] = root(other)
            near[one][other], near[other][one] = table, table.T
    return near


def _trees(near: Sequence[Mapping[int, object]]) -> Iterator[Order]:
    """By tree, (node, its parent), parents first; the root has itself."""
    reached = [False] * len(near)
    for root in range(len(near)):
        if reached[root]:
            continue
        order, reached[root] = [(root, root)], True
        for node, _ in order:
            for other in near[node]:
                if not reached[other]:
                    reached[other] = True
                    order.append((other, node))
        yield order
