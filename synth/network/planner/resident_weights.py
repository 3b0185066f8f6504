"""Weights that stay where they are used: the cheapest choice of grids whose weights fit in memory.

A rank holds the slices of Ker of all layers, whichever layer computes. So the grids of all layers share one
memory limit. The words of slices get a price, and the choice of the least cost plus price is solved as
without a limit (a Lagrangian relaxation; Everett, 1963). The lowest price is searched for whose choice fits.
Each price also proves a lower bound of every choice that fits: its least total, less the price of the words
that there is room for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.network.solve import Pairs, Solution, Table, evaluate, solve
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.search.pass_tilings import choose_tiling
from synth.search.request import STATIONARY
from synth.search.tiling_search import TilingChoice

LOWEST, RISES, HALVINGS = 1e-3, 16, 5  # of the price: the first one, times it is raised, and halvings after


def choose_resident_tiling(
    distribution: Distribution, limit_words: int | None, template: PassPlan
) -> tuple[TilingChoice | None, int]:
    """`choose_tiling` of a forward pass whose Ker is resident; its slice does not count.

    distribution: with Ker resident. limit_words: memory beside the weights of all layers.
    """
    weights = Footprints(distribution).shards["Ker"]
    limit = None if limit_words is None else limit_words + weights
    found, least = choose_tiling(distribution, STATIONARY, limit, template)
    if found is not None:
        found = replace(found, used_words=found.used_words - weights)
    return found, max(0, least - weights)


@dataclass(frozen=True)
class WeightChoice:
    """Which options of all layers fit together.

    costs, pairs: as `solve` takes them. slices: words of Ker, by node and option. room: the most words of
    slices that could fit. fits: whether chosen options fit with all that they need.
    """

    costs: Sequence[Table]
    pairs: Pairs
    slices: Sequence[Table]
    room: float
    fits: Callable[[Sequence[int]], bool]

    def words(self, chosen: Sequence[int]) -> int:
        """Words of the slices of some options."""
        return int(sum(row[option] for row, option in zip(self.slices, chosen, strict=True)))

    def solved(self, price: float, method: str) -> Solution:
        """The choice of the least cost, if a word of a slice costs `price`; `bound` is of all that fit."""
        costs = [cost + price * words for cost, words in zip(self.costs, self.slices, strict=True)]
        found = solve(costs, self.pairs, method)
        cost = evaluate(self.costs, self.pairs, found.chosen)
        return replace(found, cost=cost, bound=found.bound - price * self.room)


def cheapest_fitting(choice: WeightChoice, method: str) -> tuple[Solution | None, Solution]:
    """The cheapest choice found that fits (None: none does), and that with the fewest words of slices."""
    free = choice.solved(0.0, method)
    if choice.fits(free.chosen):
        return free, free
    most = sum(float(np.max(row)) for row in choice.slices)
    price = LOWEST * max(free.cost, 1.0) / max(most, 1.0)
    low, best, bound = 0.0, None, free.bound
    for _ in range(RISES):
        found = choice.solved(price, method)
        bound = max(bound, found.bound)
        if choice.fits(found.chosen):
            best = found
            break
        low, price = price, 4 * price
    if best is None:
        return None, found
    high = price
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high) if low else high / 2
        found = choice.solved(middle, method)
        bound = max(bound, found.bound)
        if not choice.fits(found.chosen):
            low = middle
            continue
        high = middle
        if found.cost < best.cost:
            best = found
    return replace(best, bound=min(bound, best.cost), method=f"{best.method} with priced memory"), best
