"""Exact choice of one option per node of a graph with costs of nodes and of edges.

    chain        shortest path, layer by layer (dynamic programming)
    path         the same by networkx' shortest path; the tests compare the two
    elimination  bucket elimination of one node after the other; the effort grows with the tree width
    mip          mixed-integer program (cvxpy with HiGHS) for any graph; it states its own gap

All of them minimise  Σ cost[node][option] + Σ edge[source option, target option].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synth.base.errors import InfeasibleError
from synth.base.extras import extra_needed

Table = NDArray[np.float64]
# (source node, target node) -> cost by (source option, target option)
Pairs = Mapping[tuple[int, int], Table]
MAX_TABLE = 5_000_000  # most entries of a table that elimination may build
PROGRESS_EVERY = 64  # nodes between two reports of progress

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Solution:
    """One option per node, the total cost, a proven lower bound of the cost, and the method."""

    chosen: tuple[int, ...]
    cost: float
    bound: float
    method: str

    @property
    def gap(self) -> float:
        """Proven distance from the optimum over these options, as a fraction of the cost."""
        return (self.cost - self.bound) / self.cost if self.cost > 0 else 0.0


def solve(
    costs: Sequence[Table], pairs: Pairs, method: str = "auto", progress: Progress | None = None
) -> Solution:
    """The optimum. `method` is auto, chain, path, elimination or mip; `costs` has one row per node."""
    report = progress or (lambda text: None)
    merged = _merged(pairs)
    if method == "auto":
        chain = set(merged) == set(itertools.pairwise(range(len(costs))))
        method = "chain" if chain and len(costs) > 1 else "elimination"
    if method == "chain":
        return _chain(costs, merged)
    if method == "path":
        return _path(costs, merged)
    if method == "elimination":
        found = _elimination(costs, merged, report)
        if found is not None:
            return found
        report("the graph is too wide for elimination; solving a mixed-integer program")
    return _mip(costs, merged)


def narrow(costs: Sequence[Table], pairs: Pairs) -> Solution | None:
    """The optimum on a graph that is narrow enough for elimination; None on others."""
    return _elimination(costs, _merged(pairs), lambda text: None)


def evaluate(costs: Sequence[Table], pairs: Pairs, chosen: Sequence[int]) -> float:
    """The cost of one option per node."""
    total = sum(float(costs[node][option]) for node, option in enumerate(chosen))
    return total + sum(float(table[chosen[a], chosen[b]]) for (a, b), table in pairs.items())


def _merged(pairs: Pairs) -> dict[tuple[int, int], Table]:
    """One table per pair of nodes, the smaller one first."""
    merged: dict[tuple[int, int], Table] = {}
    for (a, b), table in pairs.items():
        key, value = ((a, b), table) if a < b else ((b, a), table.T)
        merged[key] = merged[key] + value if key in merged else value
    return merged


def _chain(costs: Sequence[Table], pairs: Pairs) -> Solution:
    """Layer by layer, the cheapest path to every option."""
    reached, before = costs[0], list[NDArray[np.intp]]()  # cost so far; best option of the layer before
    for node in range(1, len(costs)):
        paths = reached[:, None] + pairs[node - 1, node]
        before.append(paths.argmin(axis=0))
        reached = paths.min(axis=0) + costs[node]
    chosen = [int(reached.argmin())]
    for step in reversed(before):
        chosen.append(int(step[chosen[-1]]))
    cost = evaluate(costs, pairs, chosen[::-1])
    return Solution(tuple(chosen[::-1]), cost, cost, "shortest path")


@extra_needed()
def _path(costs: Sequence[Table], pairs: Pairs) -> Solution:
    import networkx as nx

    graph = nx.DiGraph()
    for option, cost in enumerate(costs[0]):
        graph.add_edge("start", (0, option), weight=float(cost))
    for node in range(1, len(costs)):
        table = pairs[node - 1, node] + costs[node][None, :]
        graph.add_weighted_edges_from(
            ((node - 1, i), (node, j), float(table[i, j])) for i, j in np.ndindex(*table.shape)
        )
    last = len(costs) - 1
    graph.add_weighted_edges_from(((last, i), "end", 0.0) for i in range(len(costs[last])))
    path = nx.dijkstra_path(graph, "start", "end")
    chosen = tuple(option for _, option in path[1:-1])
    cost = evaluate(costs, pairs, chosen)
    return Solution(chosen, cost, cost, "shortest path")


def _elimination(costs: Sequence[Table], pairs: Pairs, progress: Progress) -> Solution | None:
    """Bucket elimination, smallest table first. None if a table would exceed `MAX_TABLE` entries.

    A node of one option is no dimension of a table: numpy's have at most 64.
    """
    sizes = [len(table) for table in costs]
    factors: list[tuple[tuple[int, ...], Table]] = []
    for names, table in (*(((n,), table) for n, table in enumerate(costs)), *pairs.items()):
        free = tuple(n for n in names if sizes[n] > 1)
        factors.append((free, table.reshape([sizes[n] for n in free])))
    near: list[set[int]] = [set() for _ in costs]
    for a, b in (names for names, _ in factors if len(names) > 1):
        near[a].add(b)
        near[b].add(a)
    remaining, trace = {n for n, size in enumerate(sizes) if size > 1}, []
    while remaining:
        node = min(remaining, key=lambda n: (math.prod(sizes[m] for m in near[n]) * sizes[n], n))
        scope = (*sorted(near[node]), node)
        if math.prod(sizes[n] for n in scope) > MAX_TABLE:
            return None
        joined = np.zeros([sizes[n] for n in scope])
        for names, table in [f for f in factors if node in f[0]]:
            joined += _aligned(table, names, scope)
        factors = [f for f in factors if node not in f[0]]
        factors.append((scope[:-1], joined.min(axis=-1)))
        trace.append((node, scope[:-1], joined.argmin(axis=-1)))
        for one, other in itertools.permutations(near[node], 2):
            near[one].add(other)
        for other in near[node]:
            near[other].discard(node)
        remaining.discard(node)
        if remaining and len(remaining) % PROGRESS_EVERY == 0:
            progress(f"{len(remaining)} layers to go")
    chosen = [0] * len(costs)
    for node, scope, best in reversed(trace):
        chosen[node] = int(best[tuple(chosen[n] for n in scope)])
    cost = evaluate(costs, pairs, chosen)
    return Solution(tuple(chosen), cost, cost, "elimination")


def _aligned(table: Table, names: tuple[int, ...], scope: tuple[int, ...]) -> Table:
    """A table over `names`, reshaped so that it broadcasts over `scope`."""
    order = sorted(range(len(names)), key=lambda i: scope.index(names[i]))
    transposed = np.transpose(table, order)
    shape = [1] * len(scope)
    for axis, i in enumerate(order):
        shape[scope.index(names[i])] = transposed.shape[axis]
    return transposed.reshape(shape)


@extra_needed()
def _mip(costs: Sequence[Table], pairs: Pairs) -> Solution:
    """Binary x picks an option per node; continuous y, bound to x, picks a pair of options per edge."""
    from typing import Any

    import cvxpy

    cp: Any = cvxpy

    scale = max(1.0, max(float(np.max(t)) for t in costs))
    pick = [cp.Variable(len(table), boolean=True) for table in costs]
    terms = [(table / scale) @ x for table, x in zip(costs, pick, strict=True)]
    rules = [cp.sum(x) == 1 for x in pick]
    for (a, b), table in pairs.items():
        both = cp.Variable(table.shape, nonneg=True)
        rules += [cp.sum(both, axis=1) == pick[a], cp.sum(both, axis=0) == pick[b]]
        terms.append(cp.sum(cp.multiply(table / scale, both)))
    problem = cp.Problem(cp.Minimize(cp.sum(cp.hstack(terms))), rules)
    problem.solve(solver=cp.HIGHS)
    if problem.status not in ("optimal", "optimal_inaccurate"):
        raise InfeasibleError(f"the mixed-integer program ended as {problem.status}; plan on fewer layers")
    chosen = tuple(int(np.argmax(x.value)) for x in pick)
    cost = evaluate(costs, pairs, chosen)
    bound = min(cost, float(problem.value) * scale)
    extra = getattr(problem.solver_stats, "extra_stats", None)
    dual = getattr(extra, "mip_dual_bound", None)
    return Solution(chosen, cost, bound if dual is None else min(cost, float(dual) * scale), "mip")
