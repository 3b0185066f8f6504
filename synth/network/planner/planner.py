"""Plans a whole network: a strategy per layer, with redistributions and all memory counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from synth.base.collector import without_collector
from synth.base.errors import InfeasibleError, UsageError
from synth.base.work_balance import BALANCE
from synth.layer.axes import PerAxis
from synth.network.edges.edge_prices import EdgePrices, PricedEdges
from synth.network.graph import Edge, Network
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import MAX_EXACT_RANKS, GridDistributions, PlacedGrid
from synth.network.margins.choose import CHOICES
from synth.network.plan.idle import BusyStep
from synth.network.plan.plan import NetworkPlan, SingleStrategy
from synth.network.plan.step_words import moved_words
from synth.network.planner.candidates import GridCandidates, search_together
from synth.network.planner.family_optimum import EQUAL, FamilyOptimum, FamilySearch, with_edges
from synth.network.planner.margins_of_plan import fewer_rounds, has_many_rounds, row_grids, with_margins
from synth.network.planner.memory_ladder import cheapest_within, limited_plans, without_prefetch
from synth.network.planner.options import (
    OPTIONS_OF_STRATEGY,
    STRATEGY_AXES,
    LayerOption,
    check_feasible,
    options,
    options_within,
)
from synth.network.planner.plan_memory import PlanMemory
from synth.network.planner.timed_steps import TimedSteps, followed_by
from synth.network.request import NetworkRequest
from synth.network.solve import Progress, Solution, solve
from synth.network.step_time.between import mean_between
from synth.network.step_time.choice import terms

OptionTable = list[list[LayerOption]]  # layer class -> its options
GAIN = 0.1  # of the modelled seconds of a training step that margins must save, where none are asked for
GRIDS_WITH_MARGINS = 2  # grids for all layers for which margins are chosen
EXCHANGE = 0.008, 0.03  # of the fewest words: what an exchange may count for, where rounds are saved
WIDEST_WITHIN = CHOICES[-1], 16, 8, 6, 4, 3, 2, 1  # rows of margins, as wide as a limit of memory allows
OPTIONS_OF_MANY_RANKS = 2  # options per layer above `MAX_EXACT_RANKS` processes


@without_collector()
def plan_network(
    network: Network, request: NetworkRequest, method: str = "auto", progress: Progress | None = None
) -> NetworkPlan:
    """The cheapest choice of placed grids.

    method: how `solve` chooses. progress: called with a sentence now and then.
    With a limit of memory, a step of the plan holds no more on any rank: `plan.memory` fits it. The plan
    without a limit is taken if it fits, with or without prefetched weights; else one whose passes save dOut
    alone, or, for time, one with shards in place of whole weights. If no such step fits, layers are limited,
    too: passes save dOut alone, and nothing is prefetched. Sums that return to their owners take memory, so
    such layers are also tried with cuts by output rows alone.
    Raises `UsageError` if the network has nothing to plan, and `InfeasibleError` if a layer has no grid or
    the memory is too small; the message says what would be enough.
    """
    report = progress or (lambda text: None)
    if request.procs > MAX_EXACT_RANKS:
        request = replace(request, options_per_layer=OPTIONS_OF_MANY_RANKS)
    planner = _NetworkPlanner(network, replace(request, limit_bytes=None), method, report)
    plan = planner.run() if request.limit_bytes is None else _within(planner, request, request.limit_bytes)
    if not request.most_recompute:
        return plan
    room = request.machine.limit_bytes if request.machine and request.training else None  # of whole weights
    return _with_margins(planner, plan, room if request.limit_bytes is None else request.limit_bytes)


def _within(planner: _NetworkPlanner, request: NetworkRequest, limit_bytes: int) -> NetworkPlan:
    """The cheapest plan whose step fits a limit. planner: of the same request without the limit."""
    network, method, report = planner.network, planner.method, planner.progress
    saves = request.saves & {"Out"} if request.training else request.saves
    tight = replace(request, saves=saves, whole_weights=False)
    less = replace(request, whole_weights=False) if request.objective == "time" else tight
    unlimited = dict.fromkeys([planner.request, replace(less, limit_bytes=None)])

    def free() -> Iterator[NetworkPlan]:
        for asked in unlimited:
            known = asked == planner.request
            made = (planner if known else _NetworkPlanner(network, asked, method, report)).run()
            yield made
            if asked.objective == "words" and asked.ahead is None and not asked.resident_weights:
                yield without_prefetch(made)

    def limited(input_rows: bool = True) -> Iterator[NetworkPlan]:
        planner, turned = _NetworkPlanner(network, tight, method, report, input_rows), False
        for plan in limited_plans(
            lambda limit_bytes: planner.within(limit_bytes).run(),
            lambda made: planner.memory.least_bytes(made.placed_grids),
        ):
            turned = turned or any(placed.turned for placed in plan.placed_grids)
            yield plan
        if turned:
            yield from limited(input_rows=False)

    return cheapest_within(limit_bytes, free(), limited())


def _with_margins(planner: _NetworkPlanner, plan: NetworkPlan, limit_bytes: int | None) -> NetworkPlan:
    """The plan of the least cost: that without margins, or margins on its grids or on one grid for all.

    Of the grids for all layers, those are tried that cost the least without margins. planner: without a limit
    of memory. Within a limit, margins get narrower until a step fits, or are left out. Where many
    rounds of exchanges are left, margins are chosen again as if an exchange cost more. Of the plans of nearly
    equal words, that of the fewest rounds is taken. Seconds have the price of a round in them.
    """
    made = [planner.with_grid(grid, plan) for grid in row_grids(planner.candidates, planner.layers)]
    cheapest = sorted(made, key=lambda each: each[0])[:GRIDS_WITH_MARGINS]
    tried = [plan, *(make() for _, make in cheapest)]
    grids = [tuple((placed.grid, placed.order) for placed in each.placed_grids) for each in tried]
    unasked = plan.request.training and plan.request.recompute is None
    most_cost = plan.cost * (1 - GAIN * unasked)
    best, again = plan, None
    for each in dict(zip(reversed(grids), reversed(tried), strict=True)).values():
        for most in (CHOICES[-1],) if limit_bytes is None else WIDEST_WITHIN:
            choose = partial(planner.margined, each, [more for more in CHOICES if more <= most])
            least = min(best.cost, most_cost)
            wide = choose(below=least)
            if wide.cost >= least:  # and so are narrower margins
                break
            if limit_bytes is None or wide.held_bytes <= limit_bytes:
                best, again = wide, choose
                break
    if again is None or best.timed is not None or not has_many_rounds(best):
        return best
    others = (again(share * best.cost) for share in EXCHANGE)
    fitting = [each for each in others if limit_bytes is None or each.held_bytes <= limit_bytes]
    return fewer_rounds(best, [each for each in fitting if each.cost < plan.cost])


class _NetworkPlanner:
    def __init__(
        self,
        network: Network,
        request: NetworkRequest,
        method: str,
        progress: Progress,
        input_rows: bool = True,
    ) -> None:
        self.network, self.request, self.method, self.progress = network, request, method, progress
        self.nodes = network.planned
        if not self.nodes:
            raise UsageError(
                f"{network.name} has no convolution, product or pooling; nothing is to be planned"
            )
        self.position = {node.name: i for i, node in enumerate(self.nodes)}
        self.node_classes = [
            LayerClass.of(node, request.input_gradient or network.needs_input_gradient(node))
            for node in self.nodes
        ]
        self.classes = list(dict.fromkeys(self.node_classes))
        position = {each: index for index, each in enumerate(self.classes)}
        self.class_of = [position[each] for each in self.node_classes]
        self.layers = np.bincount(self.class_of).tolist()
        self.distributions = [GridDistributions(each.nest, request.resident) for each in self.classes]
        self.prices = EdgePrices(network, request, self.classes, self.class_of, self.distributions)
        self.memory = PlanMemory(self.nodes, self.node_classes, request)
        self.progress(f"{len(self.nodes)} layers, {len(self.classes)} of them different")
        followed = followed_by(self.network, self.request)
        self.candidates = [
            GridCandidates(each, self.request, mean_between([followed[i] for i in nodes]), of, input_rows)
            for each, nodes, of in zip(
                self.classes, self._nodes_of_classes(), self.distributions, strict=True
            )
        ]
        self.steps = TimedSteps(self.request, self.node_classes, followed, self.candidates, self.class_of)

    def within(self, limit_bytes: int) -> _NetworkPlanner:
        """The planner of the same request with another limit. Words and seconds of options are shared."""
        other = copy(self)
        other.request = replace(self.request, limit_bytes=limit_bytes)
        other.memory = self.memory.within(limit_bytes)
        if self._takes_usual_balance:
            other.usual = self.usual.within(limit_bytes)
        return other

    def run(self) -> NetworkPlan:
        """The plan. Raises `InfeasibleError` if a layer has no grid, or none that fits."""
        check_feasible([self.candidates[i] for i in self.class_of], self.nodes, self.request)
        if self.request.axes:
            return self._within_axes()
        exact = self.request.procs <= MAX_EXACT_RANKS
        near = self._near_classes()
        of_axes = self._options_of_axes(near) if exact else {}
        own = options(self.candidates, near, self.request)
        if self.request.limit_bytes is None:  # under a limit, many options do not fit
            usable = [each for each in of_axes.values() if not isinstance(each, int)]
            self.prices.count(map(self.placed_options, [*usable, own]))
        singles = tuple(self._single_strategies(of_axes)) if exact else ()
        for chosen in [*(single.placed_grids for single in singles), self._plan_at_usual_balance()]:
            self._add(own, zip(self.class_of, chosen, strict=False))
        if self.request.weights_compete:  # grids that move more words, but cut the weights
            rows = ((k, each, grid) for k, each in enumerate(self.candidates) for grid in each.by_weights)
            self._add(own, ((k, each.cut(PlacedGrid(grid))) for k, each, grid in rows))
        table = self.memory.require_fitting(self.classes, own)
        self.progress(f"options per layer: {min(map(len, table))} to {max(map(len, table))}")
        solution, priced = self._solve(table, self.method)
        best = self._best_of_family(solution)
        if best.placed is not None and best.words < solution.cost * (1 - EQUAL):
            self._add(table, zip(self.class_of, best.placed, strict=True))
            solution, priced = self._solve(table, self.method)
        made = partial(self._result, table, priced=priced, singles=singles, least=best.words)
        fastest = self._or_single(table, solution, singles)
        plain = self._within_margin(table, fastest, singles)
        if plain is None:
            return made(fastest)
        return min(made(plain), made(fastest), key=moved_words)

    def _add(self, table: OptionTable, chosen: Iterable[tuple[int, PlacedGrid]]) -> None:
        """Let classes of layers have placed grids among their options, each once."""
        for k, placed in chosen:
            if all(option.placed != placed for option in table[k]):
                table[k].append(LayerOption(placed, self.candidates[k].cost(placed)))

    def _or_single(
        self, table: OptionTable, solution: Solution, singles: Sequence[SingleStrategy]
    ) -> Solution:
        """A solution, or the choice of a single strategy if that is faster.

        It can be where weights may be whole, since such a choice is made for some prices of buckets only.
        """
        usable = [each for each in singles if each.cost is not None and each.cost < solution.cost]
        if self.request.objective == "words" or not usable:
            return solution
        return self._choice(table, solution, min(usable, key=lambda each: each.cost or 0.0))

    def _within_margin(
        self, table: OptionTable, solution: Solution, singles: Sequence[SingleStrategy]
    ) -> Solution | None:
        """Data parallelism, if it is slower than a solution, but by less than the margin of the request."""
        found = [each for each in singles if each.name == "data" and each.cost is not None]
        if not found or not solution.cost < (found[0].cost or 0.0) < solution.cost / (
            1 - self.request.margin
        ):
            return None
        return self._choice(table, solution, found[0])

    def _choice(self, table: OptionTable, solution: Solution, single: SingleStrategy) -> Solution:
        """The choice of a single strategy, in place of a solution."""
        rows = [[option.placed for option in table[k]] for k in self.class_of]
        chosen = tuple(row.index(placed) for row, placed in zip(rows, single.placed_grids, strict=True))
        return replace(solution, chosen=chosen, cost=single.cost or 0.0)

    def _nodes_of_classes(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.classes]
        for node, layer_class in enumerate(self.class_of):
            found[layer_class].append(node)
        return found

    def _plan_at_usual_balance(self) -> tuple[PlacedGrid, ...]:
        """The plan within the default balance, if more is allowed. It keeps the result from getting worse."""
        try:
            return self.usual.run().placed_grids if self._takes_usual_balance else ()
        except InfeasibleError:
            return ()

    @property
    def _takes_usual_balance(self) -> bool:
        return self.request.balance > BALANCE and self.request.procs <= MAX_EXACT_RANKS

    @cached_property
    def usual(self) -> _NetworkPlanner:
        """The planner of the same request within the default balance."""
        usual = replace(self.request, balance=BALANCE)
        return _NetworkPlanner(self.network, usual, self.method, self.progress)

    def _within_axes(self) -> NetworkPlan:
        """The best plan whose grids split the requested axes only."""
        axes = self.request.axes
        found = options_within(self.candidates, self._near_classes(), self.layers, [axes])[axes]
        if isinstance(found, int):
            node = self.nodes[self.class_of.index(found)]
            raise InfeasibleError(f"{node.name}: no grid splits {axes} only; free more axes")
        table = self.memory.require_fitting(self.classes, found)
        return self._result(table, *self._solve(table, self.method), ())

    def _near_classes(self) -> list[list[int]]:
        """Class -> the classes of layers that are at most two redistributions away."""
        beside: list[set[int]] = [set() for _ in self.nodes]
        for edge in self.network.edges:
            one, other = self.position[edge.source], self.position[edge.target]
            beside[one].add(other)
            beside[other].add(one)
        near: list[set[int]] = [set() for _ in self.classes]
        for node, others in enumerate(beside):
            reached = others.union(*(beside[other] for other in others)) - {node}
            near[self.class_of[node]] |= {self.class_of[other] for other in reached}
        return [sorted(each) for each in near]

    # -- the choice of one option per layer ---------------------------------------------------------------

    def with_grid(self, grid: PerAxis, usual: NetworkPlan) -> tuple[float, Callable[[], NetworkPlan]]:
        """A plan in which layers have one grid: its cost, and what makes it.

        Layers that do not admit the grid choose among usual grids.
        """
        table: OptionTable = []
        for k, candidates in enumerate(self.candidates):
            if grid in candidates.grids.places:
                placed = candidates.placements(grid)
            else:
                pairs = zip(self.class_of, usual.placed_grids, strict=True)
                placed = [*dict.fromkeys(each for other, each in pairs if other == k)]
            table.append([LayerOption(each, candidates.cost(each)) for each in placed])
        solution, priced = self._solve(table, self.method)
        singles, least = usual.single_strategies, usual.lower_bound
        return solution.cost, partial(self._result, table, solution, priced, singles, least)

    def margined(
        self, plan: NetworkPlan, tried: Sequence[int], exchange: float = 0.0, below: float = math.inf
    ) -> NetworkPlan:
        """A plan with margins of some rows. Under a limit, layers with margins still compute in one piece.

        exchange, below: see `with_margins`.
        """
        steps = self.steps if plan.timed else None
        made = with_margins(plan, self.by_input_rows(plan), steps, tried, exchange, below)
        if made.margins is None:
            return made
        tilings = list(made.tilings)
        before = zip(self.nodes, self.node_classes, plan.placed_grids, made.placed_grids, strict=True)
        for i, (node, kind, old, new) in enumerate(before):
            if new != old or node.name in made.margins.layers:
                tilings[i] = self.memory.tiling(kind, new) or tilings[i]
        return replace(made, tilings=tuple(tilings))

    def by_input_rows(self, plan: NetworkPlan) -> dict[str, tuple[PlacedGrid, float]]:
        """Layer -> its grid in a plan, cut by input rows, and its cost, where that is less."""
        found = {}
        for node, k, placed in zip(self.nodes, self.class_of, plan.placed_grids, strict=True):
            cut = self.candidates[k].cut(placed)
            if cut.turned:
                found[node.name] = cut, self.candidates[k].cost(cut)
        return found

    def _options_of_axes(self, near: Sequence[Sequence[int]]) -> dict[str, OptionTable | int]:
        """Axes of single strategies -> the options within them; or the position of a class that has none.

        Strategies with fewer axes come first: their choices become options of those with more axes.
        """
        by_length = sorted(set(STRATEGY_AXES.values()), key=lambda axes: (len(axes), axes))
        found: dict[str, OptionTable | int] = {}
        if self.request.objective == "time":  # seconds add grids to a class, strategy by strategy
            for axes in by_length:
                found |= options_within(self.candidates, near, self.layers, [axes])
            return found
        own = [(self.request.options_per_layer, "", full) for full in (False, True)]
        selections = [*own, *((OPTIONS_OF_STRATEGY, axes, False) for axes in by_length)]
        search_together(self.candidates, selections)
        return options_within(self.candidates, near, self.layers, by_length)

    def _single_strategies(self, of_axes: dict[str, OptionTable | int]) -> list[SingleStrategy]:
        by_axes: dict[str, SingleStrategy] = {}
        for axes, found in of_axes.items():
            within = [single for other, single in by_axes.items() if set(other) <= set(axes)]
            by_axes[axes] = self._single_strategy(axes, found, within)
        return [replace(by_axes[axes], name=name) for name, axes in STRATEGY_AXES.items()]

    def _single_strategy(
        self, axes: str, found: OptionTable | int, within: Sequence[SingleStrategy]
    ) -> SingleStrategy:
        if isinstance(found, int):
            node = self.nodes[self.class_of.index(found)]
            return SingleStrategy(
                axes, None, f"cannot use {self.request.procs} processes evenly at {node.name}"
            )
        for single in within:
            self._add(found, zip(self.class_of, single.placed_grids, strict=False))
        table = self.memory.fitting(self.classes, found)
        if table is None:
            return SingleStrategy(axes, None, "needs more memory")
        try:
            solution, priced = self._solve(table, "auto")
        except InfeasibleError:  # the weights together
            return SingleStrategy(axes, None, "needs more memory")
        chosen = self._placed(table, solution)
        better = [each for each in within if each.cost is not None and each.cost < solution.cost]
        if better and self.request.objective == "time":  # see `_or_single`
            return replace(min(better, key=lambda each: each.cost or 0.0), name=axes)
        single = SingleStrategy(axes, solution.cost, "", chosen)
        steps = self.steps.timed(self.placed_options(table), solution.chosen)
        if steps is None or not self.request.times_strategies:
            return single
        tilings = map(self.memory.tiling, self.node_classes, chosen, steps.whole)
        words = tuple(0 if each is None else each.used_words for each in tilings)
        used = self.memory.resident_of(chosen) + self.steps.words_of_whole(chosen, steps) + max(words)
        moved = _chosen_costs(priced, self._at(solution, priced))
        return replace(single, timed=steps, edge_costs=moved, layer_words=words, used_words=used)

    def _placed(self, table: OptionTable, solution: Solution) -> tuple[PlacedGrid, ...]:
        """The chosen grids of all layers."""
        return tuple(table[k][o].placed for k, o in zip(self.class_of, solution.chosen, strict=True))

    @staticmethod
    def placed_options(table: OptionTable) -> list[list[PlacedGrid]]:
        """Layer class -> the placed grids of its options."""
        return [[option.placed for option in row] for row in table]

    def _solve(self, table: OptionTable, method: str) -> tuple[Solution, PricedEdges]:
        costs = [np.array([option.cost for option in table[k]]) for k in self.class_of]
        priced = self.prices.of(self.placed_options(table))
        if self.request.objective == "time":  # `StepSeconds` has the seconds of layers
            costs = [np.zeros(len(row)) for row in costs]
        costs, pairs = with_edges(costs, priced, self.position)
        if self.request.objective == "time":
            options = self.placed_options(table)
            if not self.request.weights_compete:
                return self.steps.cheapest(options, costs, pairs, method, self.progress), priced
            costs, pairs = terms(self.steps.step(options), costs, pairs, 0.0)
        if self.request.weights_compete:
            placed = [[option.placed for option in table[k]] for k in self.class_of]
            return self.memory.cheapest_fitting(placed, costs, pairs, method), priced
        return solve(costs, pairs, method, self.progress), priced

    def _at(self, solution: Solution, priced: PricedEdges) -> dict[Edge, tuple[int, int]]:
        """Edge -> the options of its ends."""
        return {
            edge: (solution.chosen[self.position[edge.source]], solution.chosen[self.position[edge.target]])
            for edge in priced
        }

    def _result(
        self,
        table: OptionTable,
        solution: Solution,
        priced: PricedEdges,
        singles: tuple[SingleStrategy, ...],
        least: float | None = None,
    ) -> NetworkPlan:
        """least: words of which no plan of the family moves fewer; None for those of layers alone."""
        grids = self._placed(table, solution)
        self.memory.place(grids)
        at = self._at(solution, priced)
        steps = self.steps.timed(self.placed_options(table), solution.chosen)
        whole = steps.whole if steps else (False,) * len(grids)
        tilings = tuple(map(self.memory.tiling, self.node_classes, grids, whole))
        assert all(each is not None for each in tilings)
        return NetworkPlan(
            network=self.network,
            request=self.request,
            placed_grids=grids,
            layer_costs=tuple(each.total for each in steps.layers)
            if steps
            else tuple(
                self.candidates[k].cost(placed) + self.memory.reloaded_words(kind, placed)
                for k, kind, placed in zip(self.class_of, self.node_classes, grids, strict=True)
            ),
            edge_costs=_chosen_costs(priced, at),
            edge_words={edge: int(words[at[edge]]) for edge, (words, _) in priced.items()},
            solution=solution,
            lower_bound=self._least(solution.cost) if least is None else least,
            single_strategies=singles,
            resident_words=self.memory.resident_words + self.steps.words_of_whole(grids, steps),
            tilings=tuple(each for each in tilings if each is not None),
            layer_classes=tuple(self.node_classes),
            timed=steps,
            busy=None if steps is None else partial(self._busy, table),
        )

    def _least(self, cost: float) -> float:
        """A lower bound of every plan of the family, in seconds, or in words of layers alone."""
        if self.request.objective == "time":
            return self.steps.least(self.network, self.prices.price, cost)
        return math.fsum(self.candidates[k].proven_least() for k in self.class_of)

    def _best_of_family(self, solution: Solution) -> FamilyOptimum:
        """The fewest words of any plan of the family, and the plan if it is known."""
        request = self.request
        exact = request.objective == "words" and request.limit_bytes is None
        if not exact or request.procs > MAX_EXACT_RANKS:
            return FamilyOptimum(self._least(solution.cost))
        return self.family.optimum(solution.cost)

    @cached_property
    def family(self) -> FamilySearch:
        """The search over all plans of the family."""
        return FamilySearch(
            self.network,
            self.request,
            self.classes,
            self.class_of,
            self.candidates,
            self.prices,
            self.distributions,
        )

    def _busy(self, table: OptionTable) -> BusyStep | None:
        """The fastest choice of options that use as many processes as any option of their layer."""
        sizes = [max(option.placed.grid.size for option in row) for row in table]
        full = [
            [option for option in row if option.placed.grid.size == size]
            for row, size in zip(table, sizes, strict=True)
        ]
        try:
            solution, priced = self._solve(full, "auto")
        except InfeasibleError:  # the weights together
            return None
        chosen = self._placed(full, solution)
        steps = self.steps.timed(self.placed_options(full), solution.chosen)
        assert steps is not None
        return BusyStep(chosen, steps, _chosen_costs(priced, self._at(solution, priced)))


def _chosen_costs(priced: PricedEdges, at: dict[Edge, tuple[int, int]]) -> dict[Edge, float]:
    return {edge: float(cost[at[edge]]) for edge, (_, cost) in priced.items()}
