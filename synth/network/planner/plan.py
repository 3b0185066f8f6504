"""The plan of a whole network: a placed grid for every layer, and what it costs beside single strategies."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from synth.network.graph import Edge, Network
from synth.network.planner.candidates import Asked, Kind
from synth.network.planner.owned_boxes import Placed
from synth.network.planner.solve import Solution
from synth.search.tiling_search import Fit


@dataclass(frozen=True)
class Single:
    """The best that one strategy does on every layer; `why` says where it cannot be used."""

    name: str
    cost: float | None
    why: str = ""
    chosen: tuple[Placed, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class NetworkPlan:
    """One placed grid per planned layer. Costs are words per rank (at most) or seconds, as asked."""

    network: Network
    asked: Asked
    chosen: tuple[Placed, ...]
    layer_costs: tuple[float, ...]
    edge_costs: dict[Edge, float]
    edge_words: dict[Edge, int]
    solution: Solution
    least: float  # Σ of every layer's own least cost: no plan of the family is below
    singles: tuple[Single, ...]
    resident: int  # words that every rank holds throughout: weights, gradients, activations
    fits: tuple[Fit, ...]
    kinds: tuple[Kind, ...]

    @property
    def cost(self) -> float:
        """Words received per rank, summed over layers and redistributions, or seconds."""
        return sum(self.layer_costs) + sum(self.edge_costs.values())

    @property
    def best_single(self) -> Single | None:
        """The best single strategy that can be used everywhere."""
        usable = [s for s in self.singles if s.cost is not None]
        return min(usable, key=lambda s: s.cost or 0.0, default=None)

    @property
    def ratio(self) -> float | None:
        """This plan over the best single strategy."""
        best = self.best_single
        return self.cost / best.cost if best and best.cost else None

    @property
    def used_words(self) -> int:
        """The most words a rank holds: what is resident, and the working memory of the largest layer."""
        return self.resident + max(each.used_words for each in self.fits)

    @cached_property
    def free_edges(self) -> list[Edge]:
        """Redistributions over which nothing moves."""
        return [edge for edge, words in self.edge_words.items() if words == 0]

    def __str__(self) -> str:
        from synth.network.planner.report import report

        return report(self)
