"""The plan of a whole network: a placed grid for every layer, and its cost beside single strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from synth.base.errors import UsageError
from synth.base.notebook import inline_html
from synth.base.tabular import Tabular, flat
from synth.base.units import show_bytes, show_words
from synth.network.graph import Edge, Network
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.margins.margins import Margins
from synth.network.memory.step_memory import StepMemory, step_memory
from synth.network.plan.calls import MOST_RANKS
from synth.network.plan.cost_text import Received, cost_text
from synth.network.request import NetworkRequest
from synth.network.solve import Solution
from synth.network.step_time.choice import TimedStep
from synth.search.tiling_search import TilingChoice

if TYPE_CHECKING:
    from synth.network.plan.idle import BusyStep
    from synth.network.step_time.calls import CallCost
    from synth.runtime.model.planned_words import PlannedWords


def incoming(edge_costs: Mapping[Edge, float]) -> dict[str, float]:
    """Layer -> the costs of all redistributions to it."""
    found: dict[str, float] = {}
    for edge, cost in edge_costs.items():
        found[edge.target] = found.get(edge.target, 0.0) + cost
    return found


@dataclass(frozen=True)
class SingleStrategy:
    """The best result of one strategy on every layer. `cost` is None if it cannot be used; `why` says why.

    timed, edge_costs: the seconds of its step and of its redistributions. layer_words: working memory by
    layer. used_words: that a rank holds at most. These are known where `request.times_strategies`.
    """

    name: str
    cost: float | None
    why: str = ""
    placed_grids: tuple[PlacedGrid, ...] = field(default=(), repr=False)
    timed: TimedStep | None = field(default=None, repr=False)
    edge_costs: dict[Edge, float] = field(default_factory=dict, repr=False)
    layer_words: tuple[int, ...] = field(default=(), repr=False)
    used_words: int = 0


@dataclass(frozen=True)
class NetworkPlan(Tabular):
    """The plan of a network: a placed grid per layer with a loop nest, in the order of `network.planned`.

    Costs are words received per rank (the maximum over ranks), or seconds, as `request.objective` says.
    lower_bound: no plan of this family costs less; see `planner.family_optimum` and `TimedSteps.least`.
    resident_words: words that every rank holds throughout the step: weights, in training also gradients
    and inputs of all layers. tilings: the pass plans of every layer; their memory does not contain weights
    that are resident. words_of: gives `words` of a plan of a model; it is not sent to other processes.
    timed: the seconds of a step by layer; None where words are counted. busy: finds the fastest step in which
    every layer uses as many processes as it can, None if there is none; it stays in this process, too.
    margins: rows that several ranks compute, None for none. Covered layers, and edges to them, then have no
    cost of their own: the words of `margins` are in their place. `lower_bound` is that of plans without.
    """

    network: Network
    request: NetworkRequest
    placed_grids: tuple[PlacedGrid, ...]
    layer_costs: tuple[float, ...]
    edge_costs: dict[Edge, float]
    edge_words: dict[Edge, int]
    solution: Solution
    lower_bound: float
    single_strategies: tuple[SingleStrategy, ...]
    resident_words: int
    tilings: tuple[TilingChoice, ...]
    layer_classes: tuple[LayerClass, ...]
    words_of: Callable[[NetworkPlan], PlannedWords] | None = field(default=None, compare=False, repr=False)
    timed: TimedStep | None = None
    busy: Callable[[], BusyStep | None] | None = field(default=None, compare=False, repr=False)
    margins: Margins | None = None

    @property
    def cost(self) -> float:
        """Words received per rank, or seconds, summed over layers, redistributions and fetched rows."""
        return sum(self.layer_costs) + sum(self.edge_costs.values()) + self.fetched_cost

    @property
    def fetched_cost(self) -> float:
        """Words received per rank, or seconds, of rows that are fetched beside margins."""
        if self.margins is None:
            return 0
        return self.margins.cost if self.timed is None else sum(self.margins.seconds.values())

    @property
    def incoming_costs(self) -> dict[str, float]:
        """Layer -> words or seconds of redistributions to it, and of fetched rows of its result.

        Rows of the network's input count with the first layer.
        """
        found = incoming(self.edge_costs)
        if self.margins is not None:
            fetched = self.margins.words if self.timed is None else self.margins.seconds
            for name, cost in fetched.items():
                layer = self.network.parts[name][0].node or self.network.planned[0].name
                found[layer] = found.get(layer, 0.0) + cost
        return found

    @property
    def best_single(self) -> SingleStrategy | None:
        """The best single strategy that can be used on every layer."""
        usable = [s for s in self.single_strategies if s.cost is not None]
        return min(usable, key=lambda s: s.cost or 0.0, default=None)

    @property
    def ratio(self) -> float | None:
        """The cost of this plan over that of the best single strategy."""
        best = self.best_single
        return self.cost / best.cost if best and best.cost else None

    @property
    def whole(self) -> tuple[bool, ...]:
        """Layers in training of which every rank holds the whole slice of Ker that it uses, as with DDP."""
        return (False,) * len(self.placed_grids) if self.timed is None else self.timed.whole

    @property
    def word_bytes(self) -> int:
        """Bytes per word of the network's dtype."""
        return self.layer_classes[0].nest.word_bytes

    def edge_bytes(self, edge: Edge) -> int:
        """Bytes that the most-receiving rank receives over an edge, in the dtype of the edge's target."""
        layer = self.network.nodes[edge.target].layer
        assert layer is not None
        return self.edge_words[edge] * layer.nest.word_bytes

    @property
    def limit_bytes(self) -> int | None:
        """What a rank may hold in a step; None for a plan without a limit, even if it fits a given one."""
        return self.request.limit_bytes

    @property
    def used_words(self) -> int:
        """The most words a rank holds: the resident words, and the working memory of the largest layer."""
        return self.resident_words + max(each.used_words for each in self.tilings)

    @property
    def used_bytes(self) -> int:
        """`used_words` in bytes."""
        return self.used_words * self.word_bytes

    @cached_property
    def recomputed_words(self) -> int:
        """Words received per rank, beside `cost`, because checkpoints of the model compute layers again."""
        from synth.network.plan.checkpoints import recomputed_words

        return recomputed_words(self)

    @cached_property
    def statistics_words(self) -> int:
        """Words received per rank, beside `cost`, in the exchanges of batch normalizations."""
        from synth.network.plan.statistics import statistics_words

        return statistics_words(self)

    @cached_property
    def group_statistics_words(self) -> int:
        """Words received per rank, beside `cost`, by group, instance and layer normalizations."""
        from synth.network.plan.statistics import group_statistics_words

        return group_statistics_words(self)

    @cached_property
    def calls(self) -> list[CallCost]:
        """Calls that the planner does not cut, with words and seconds: attention, gathered calls.

        Of the plan of a model the words are those that the steps exchange. `cost` has the seconds of calls
        from the shapes alone.
        """
        from synth.network.plan.calls import calls_of_plan

        return calls_of_plan(self)

    @cached_property
    def words_beside(self) -> dict[str, int]:
        """What a process receives beyond its layers and what moves between them, by cause: words, at most.

        `calls` that are gathered or cut anew, `normalizations`, and what `checkpoints` move again. `cost` has
        none of them, as they are the same for all grids or follow from the grids of the layers.
        """
        training = self.request.training
        found = {
            "calls": sum(each.words + each.back * training for each in self.calls),
            "normalizations": self.statistics_words + self.group_statistics_words,
            "checkpoints": self.recomputed_words,
        }
        return {cause: words for cause, words in found.items() if words}

    @cached_property
    def words(self) -> PlannedWords:
        """Words that every rank receives in a forward pass, or in a training step, in all calls of the model.

        Raises `UsageError` for a plan that was not made by `plan_model`, that comes from another process, or
        of many ranks.
        """
        if self.words_of is None:
            raise UsageError(
                f"this plan of {self.network.name} has no model; take words of what synth.plan_model returns,"
                " in the same process"
            )
        return self.words_of(self)

    @property
    def counted(self) -> bool:
        """Whether `words` are known: of a plan of a model in this process, for few ranks."""
        return self.words_of is not None and self.request.procs <= MOST_RANKS

    @cached_property
    def received(self) -> Received:
        """Words that the busiest process receives in one pass: the one number of all summaries and reports.

        From `words` where they are known, else a bound; see `Received`.
        """
        if self.counted:
            return Received(self.words.most, True)
        from synth.network.plan.step_words import moved_words

        own = round(self.cost) if self.request.objective == "words" else moved_words(self)
        return Received(own + sum(self.words_beside.values()), False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the model and the options, which stay in this process."""
        return {**self.__dict__, "words_of": None, "busy": None}

    @cached_property
    def memory(self) -> StepMemory:
        """What every rank holds, at most, in a step that `parallelize` runs; see `StepMemory`."""
        return step_memory(self)

    @property
    def held_bytes(self) -> int:
        """Bytes of a step on the rank that holds most: the least limit that the step fits."""
        return self.memory.most * self.word_bytes

    @cached_property
    def free_edges(self) -> list[Edge]:
        """Redistributions that move no word."""
        return [edge for edge, words in self.edge_words.items() if words == 0]

    def show_cost(self, cost: float) -> str:
        """A cost of this plan with its unit."""
        return show_words(cost) if self.request.objective == "words" else f"{cost * 1e3:.4g} ms"

    def records(self) -> list[dict[str, Any]]:
        """A row per planned layer: grid, words by tensor, memory, and what `to_json` has of it."""
        from synth.network.plan.plan_json import layer_rows

        return [flat(layer) for layer in layer_rows(self)]

    def to_json(self) -> dict[str, Any]:
        """The plan as the JSON data of a network plan file: see `plan_json.to_json`."""
        from synth.network.plan.plan_json import to_json

        return to_json(self)

    def _repr_html_(self) -> str:
        """Totals and a row per layer, for notebooks."""
        return inline_html(self)

    def __str__(self) -> str:
        """A summary in one line; `report` gives the whole report."""
        work = "training step" if self.request.training else "forward pass"
        work += " with resident weights" if self.request.resident_weights else ""
        beside = "" if self.ratio is None else f", {self.ratio:.3f} of the best single strategy"
        return (
            f"{self.network.name} on {self.request.procs} processes, {work}: "
            f"{len(self.placed_grids)} layers, "
            f"{cost_text(self.request.objective, self.cost, self.received)}{beside}; "
            f"{show_bytes(self.held_bytes)} per process"
        )
