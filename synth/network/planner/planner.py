"""A strategy per layer of a whole network, with what moves between layers and all memory counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from synth.base.errors import InfeasibleError, UsageError
from synth.layer.axes import PerAxis
from synth.machine.rank_groups import split_over
from synth.network.graph import Edge, Network
from synth.network.planner.candidates import (
    BALANCE,
    STRATEGY_AXES,
    Asked,
    Catalogue,
    Choice,
    Kind,
    feasible,
    options,
    strategy_choices,
)
from synth.network.planner.owned_boxes import EVERY, Array, Boxes, Placed
from synth.network.planner.plan import NetworkPlan, Single
from synth.network.planner.redistribution import Side, edge_words, single_positions
from synth.network.planner.solve import Progress, Solution, Table, solve
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.search.branch_and_bound import STATIONARY
from synth.search.tiling_search import Fit, fit
from synth.search.training_step import fit_kept


def plan_network(
    network: Network, asked: Asked, method: str = "auto", progress: Progress | None = None
) -> NetworkPlan:
    """The cheapest choice of placed grids.

    Raises `UsageError` for contradicting arguments, and `InfeasibleError` where a layer has no grid or the
    memory is too small; the message says what would do.
    """
    if asked.objective not in ("words", "time"):
        raise UsageError(f"objective is {asked.objective!r}; for a network it must be words or time")
    if asked.objective == "time" and asked.machine is None:
        raise UsageError("objective time needs a machine; name one with --machine")
    if not 1 <= asked.procs <= 2**20:
        raise UsageError(f"procs is {asked.procs}; it must be from 1 to {2**20} for a network")
    if asked.procs > EVERY:
        asked = replace(asked, keep=2)
    return _Planner(network, asked, method, progress or (lambda text: None)).run()


class _Planner:
    def __init__(self, network: Network, asked: Asked, method: str, tell: Progress) -> None:
        self.network, self.asked, self.method, self.tell = network, asked, method, tell
        self.nodes = network.planned
        if not self.nodes:
            raise UsageError(
                f"{network.name} has no convolution, product or pooling; nothing is to be planned"
            )
        self.position = {node.name: i for i, node in enumerate(self.nodes)}
        self.kinds = [Kind.of(node, asked.inward or network.inward(node)) for node in self.nodes]
        self.distinct = list(dict.fromkeys(self.kinds))
        self.of_kind = [self.distinct.index(kind) for kind in self.kinds]
        self.fitted: dict[tuple[Kind, PerAxis], Fit | None] = {}

    def run(self) -> NetworkPlan:
        self.tell(f"{len(self.nodes)} layers, {len(self.distinct)} of them different")
        self.catalogues = [Catalogue(kind, self.asked) for kind in self.distinct]
        feasible([self.catalogues[i] for i in self.of_kind], self.nodes, self.asked)
        self.resident = self._resident()
        if self.asked.axes:
            return self._restricted()
        singles = () if self.asked.procs > EVERY else tuple(self._singles())
        extra: list[list[Placed]] = [[] for _ in self.distinct]
        for single in singles:
            for kind, placed in zip(self.of_kind, single.chosen, strict=False):
                extra[kind].append(placed)
        for kind, placed in zip(self.of_kind, self._narrower(), strict=False):
            extra[kind].append(placed)
        table = self._fitted(options(self.catalogues, self._near(), extra, self.asked))
        self.tell(f"options per layer: {min(map(len, table))} to {max(map(len, table))}")
        solution, words = self._solve(table, self.method)
        return self._result(table, solution, words, singles)

    def _narrower(self) -> tuple[Placed, ...]:
        """What the plan within the usual balance chooses, where more is allowed: never worse for that."""
        if self.asked.balance <= BALANCE or self.asked.procs > EVERY:
            return ()
        try:
            return (
                _Planner(self.network, replace(self.asked, balance=BALANCE), self.method, self.tell)
                .run()
                .chosen
            )
        except InfeasibleError:
            return ()

    def _restricted(self) -> NetworkPlan:
        """The best choice of grids that split certain axes only."""
        found = strategy_choices(self.catalogues, self.asked.axes)
        if isinstance(found, int):
            node = self.nodes[self.of_kind.index(found)]
            raise InfeasibleError(f"{node.name}: no grid splits {self.asked.axes} only; free more axes")
        table = self._fitted(found)
        solution, words = self._solve(table, self.method)
        return self._result(table, solution, words, ())

    def _near(self) -> list[list[int]]:
        """Kind -> kinds of layers that are at most two redistributions away."""
        beside: list[set[int]] = [set() for _ in self.nodes]
        for edge in self.network.edges:
            one, other = self.position[edge.source], self.position[edge.target]
            beside[one].add(other)
            beside[other].add(one)
        near: list[set[int]] = [set() for _ in self.distinct]
        for node, others in enumerate(beside):
            reached = others.union(*(beside[other] for other in others)) - {node}
            near[self.of_kind[node]] |= {self.of_kind[other] for other in reached}
        return [sorted(each) for each in near]

    # -- memory ---------------------------------------------------------------------------------------

    def _resident(self) -> int:
        """Words that stay: weights; in training also gradients and all activations, at most per rank."""
        total = 0
        for node in self.nodes:
            nest, procs = Kind.of(node).nest, self.asked.procs
            if node.weighted:
                total += -(-nest.words["Ker"] // procs) * (2 if self.asked.training else 1)
            if self.asked.training:
                total += -(-nest.words[Kind.of(node).ends[0]] // procs)
        return total

    def _fitting(self, table: list[list[Choice]]) -> list[list[Choice]] | None:
        """Only the options that fit the memory; None where a layer has none."""
        if self.asked.limit_bytes is None:
            return table
        result = []
        for kind, choices in zip(self.distinct, table, strict=True):
            fitting = [c for c in choices if self._fit(kind, c.placed) is not None]
            if not fitting:
                return None
            result.append(fitting)
        return result

    def _fitted(self, table: list[list[Choice]]) -> list[list[Choice]]:
        """The same; raises `InfeasibleError` where a layer has none."""
        found = self._fitting(table)
        if found is None:
            raise self._too_small(table)
        return found

    def _limit(self, kind: Kind) -> int | None:
        if self.asked.limit_bytes is None:
            return None
        return self.asked.limit_bytes // kind.nest.word_bytes - self.resident

    def _fit(self, kind: Kind, placed: Placed) -> Fit | None:
        key = (kind, placed.grid)
        if key not in self.fitted:
            self.fitted[key] = self._fits(kind, placed, self._limit(kind))[0]
        return self.fitted[key]

    def _fits(self, kind: Kind, placed: Placed, limit_words: int | None) -> tuple[Fit | None, int]:
        """The plans of the passes that fit a limit in words, and the least that they need."""
        distribution = Distribution(kind.nest, placed.grid)
        if self.asked.training and kind.weighted:
            how = self.asked.kept, bool(kind.rows), kind.gradients
            return fit_kept(distribution, STATIONARY, limit_words, *how)
        return fit(distribution, STATIONARY, limit_words, _role(kind))

    def _too_small(self, table: Sequence[Sequence[Choice]]) -> InfeasibleError:
        """Which layer needs most, and what would do for all."""
        needs = [
            min(self._fits(kind, c.placed, 0)[1] for c in choices)
            for kind, choices in zip(self.distinct, table, strict=True)
        ]
        most = max(range(len(needs)), key=needs.__getitem__)
        node, size = self.nodes[self.of_kind.index(most)], self.distinct[most].nest.word_bytes
        need = (needs[most] + self.resident) * size
        return InfeasibleError(
            f"{node.name}: no option fits {self.asked.limit_bytes} bytes per process next to the "
            f"{self.resident * size} bytes that stay throughout; --memory {need} would do"
        )

    # -- one choice of options --------------------------------------------------------------------------

    def _singles(self) -> list[Single]:
        """Strategies with fewer axes first: what they choose is open to those with more."""
        by_axes: dict[str, Single] = {}
        for axes in sorted(set(STRATEGY_AXES.values()), key=lambda axes: (len(axes), axes)):
            within = [single for other, single in by_axes.items() if set(other) <= set(axes)]
            by_axes[axes] = self._single(axes, within)
        return [replace(by_axes[axes], name=name) for name, axes in STRATEGY_AXES.items()]

    def _single(self, axes: str, within: Sequence[Single]) -> Single:
        found = strategy_choices(self.catalogues, axes)
        if isinstance(found, int):
            node = self.nodes[self.of_kind.index(found)]
            return Single(axes, None, f"cannot use {self.asked.procs} processes evenly at {node.name}")
        for single in within:
            for kind, placed in zip(self.of_kind, single.chosen, strict=False):
                if all(choice.placed != placed for choice in found[kind]):
                    found[kind].append(Choice(placed, self.catalogues[kind].cost(placed)))
        table = self._fitting(found)
        if table is None:
            return Single(axes, None, "needs more memory")
        solution, _ = self._solve(table, "auto")
        chosen = tuple(table[k][o].placed for k, o in zip(self.of_kind, solution.chosen, strict=True))
        return Single(axes, solution.cost, "", chosen)

    def _solve(
        self, table: list[list[Choice]], method: str
    ) -> tuple[Solution, dict[Edge, tuple[Array, Table]]]:
        costs = [np.array([c.cost for c in table[kind]]) for kind in self.of_kind]
        priced = self._edges(table)
        pairs: dict[tuple[int, int], Table] = {}
        for edge, (_, cost) in priced.items():
            key = self.position[edge.source], self.position[edge.target]
            pairs[key] = pairs[key] + cost if key in pairs else cost
        return solve(costs, pairs, method, self.tell), priced

    def _edges(self, table: list[list[Choice]]) -> dict[Edge, tuple[Array, Table]]:
        """Edge -> (words, cost) by (source option, target option); alike edges are priced once."""
        procs = self.asked.procs
        boxes = [
            Boxes(k.nest, [c.placed for c in row], procs) for k, row in zip(self.distinct, table, strict=True)
        ]
        known: dict[tuple[object, ...], tuple[Array, Table]] = {}
        result = {}
        for edge in self.network.edges:
            source, target = (self.of_kind[self.position[n]] for n in (edge.source, edge.target))
            single = single_positions(self.network, edge)
            back = self.asked.returns(edge)
            key = (source, target, edge.role, edge.channels, single, back)
            if key not in known:
                before, after = (Side(self.distinct[k], boxes[k]) for k in (source, target))
                words = edge_words(edge, before, after, single, back)
                known[key] = words, self._priced(words, self.distinct[target], back)
            result[edge] = known[key]
        return result

    def _priced(self, words: Array, kind: Kind, back: bool) -> Table:
        """Words, or seconds: one exchange on the outermost level that P ranks span, all ranks at once.

        Of a value, and of its gradient if that goes `back`.
        """
        if self.asked.objective == "words":
            return words.astype(np.float64)
        machine = self.asked.machine
        assert machine is not None
        group = split_over(machine, self.asked.procs)
        if not group.units():
            return np.zeros(words.shape)
        level, _ = group.units()[-1]
        where, flows = machine.levels[level], group.shared(level)
        each = where.message(1.0, flows) - where.message(0.0, flows)
        seconds = where.message(0.0) * (1 + back) + words * kind.nest.word_bytes * each
        return np.where(words > 0, seconds, 0.0)

    def _result(
        self,
        table: list[list[Choice]],
        solution: Solution,
        priced: dict[Edge, tuple[Array, Table]],
        singles: tuple[Single, ...],
    ) -> NetworkPlan:
        picked = [table[k][o] for k, o in zip(self.of_kind, solution.chosen, strict=True)]
        at = {
            edge: (solution.chosen[self.position[edge.source]], solution.chosen[self.position[edge.target]])
            for edge in priced
        }
        fits = tuple(self._fit(kind, c.placed) for kind, c in zip(self.kinds, picked, strict=True))
        assert all(each is not None for each in fits)
        return NetworkPlan(
            self.network,
            self.asked,
            tuple(c.placed for c in picked),
            tuple(c.cost for c in picked),
            {edge: float(cost[at[edge]]) for edge, (_, cost) in priced.items()},
            {edge: int(words[at[edge]]) for edge, (words, _) in priced.items()},
            solution,
            math.fsum(self.catalogues[k].least() for k in self.of_kind),
            singles,
            self.resident,
            tuple(each for each in fits if each is not None),
            tuple(self.kinds),
        )


def _role(kind: Kind) -> PassPlan:
    """The pass that runs forward."""
    return PassPlan(pass_="backward-data") if kind.rows else PassPlan()
