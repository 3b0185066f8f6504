"""The cheapest choice of an option per node over a forest of a graph's edges: a lower bound for the graph.

Other edges count nothing. The least cost is found exactly, from the leaves on; with a second walk, from the
roots on, also the least cost of the choices that have some option of some node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from synth.network.solve import Table

Edges = Mapping[tuple[int, int], Table]  # (node, other node) -> cost by their options


def least_of_forest(costs: Sequence[Table], edges: Edges) -> tuple[float, list[Table]]:
    """(The least sum of costs of nodes and edges, node -> what each of its options adds to it at least).

    costs: by node and option. edges: those that would close a cycle with edges before them are left out.
    """
    near = _forest(len(costs), edges)
    least, more = 0.0, list(costs)
    reached = [False] * len(costs)
    for root in range(len(costs)):
        if reached[root]:
            continue
        order = _from_root(near, root, reached)
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


def _forest(nodes: int, edges: Edges) -> list[dict[int, Table]]:
    """Node -> its neighbours in a forest, with the costs by its options and theirs."""
    tree = list(range(nodes))

    def root(node: int) -> int:
        while tree[node] != node:
            node = tree[node]
        return node

    near: list[dict[int, Table]] = [{} for _ in range(nodes)]
    for (one, other), table in edges.items():
        if root(one) != root(other):
            tree[root(one)] = root(other)
            near[one][other], near[other][one] = table, table.T
    return near


def _from_root(near: Sequence[Mapping[int, Table]], root: int, reached: list[bool]) -> list[tuple[int, int]]:
    """(node, its parent) of a tree, parents first; of the root itself twice."""
    order, reached[root] = [(root, root)], True
    for node, _ in order:
        for other in near[node]:
            if not reached[other]:
                reached[other] = True
                order.append((other, node))
    return order
