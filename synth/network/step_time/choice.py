"""The choice of options of all layers with the fewest seconds, redistributions included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from synth.network.solve import Pairs, Progress, Solution, Table, evaluate, solve
from synth.network.step_time.step import PLANNED_PRICES, LayerSeconds, StepSeconds

Allowed = Callable[[Sequence[int]], Sequence[bool]]  # options of all layers -> whether weights may be whole


@dataclass(frozen=True)
class TimedStep:
    """The seconds of a chosen step by layer, and which layers hold whole weights on every rank."""

    layers: tuple[LayerSeconds, ...]
    whole: tuple[bool, ...]


def terms(
    step: StepSeconds, moved: Sequence[Table], pairs: Pairs, price: float
) -> tuple[list[Table], dict[tuple[int, int], Table]]:
    """(layer -> seconds by option, pair of layers -> seconds), with redistributions, at a price of buckets.

    moved, pairs: of the redistributions alone.
    """
    own, near = step.terms(step.whole_where_cheaper(price), price)
    joined = dict(pairs)
    for key, table in near.items():
        joined[key] = joined[key] + table if key in joined else table
    return [one + other for one, other in zip(own, moved, strict=True)], joined


def cheapest(
    step: StepSeconds,
    moved: Sequence[Table],
    pairs: Pairs,
    allowed: Allowed,
    method: str,
    progress: Progress | None = None,
) -> Solution:
    """The best choice of some prices of buckets; without whole weights there are none, and it is exact."""
    best: Solution | None = None
    for price in PLANNED_PRICES if any(step.weighted) else (0.0,):
        found = solve(*terms(step, moved, pairs, price), method, progress)
        cost = step.seconds(found.chosen, step.weights(found.chosen, allowed(found.chosen)))
        cost += evaluate(moved, pairs, found.chosen)
        if best is None or cost < best.cost:
            best = Solution(found.chosen, cost, min(found.bound, cost), found.method)
    assert best is not None
    return best


def timed(step: StepSeconds, chosen: Sequence[int], allowed: Allowed) -> TimedStep:
    """The seconds of a choice by layer."""
    whole = step.weights(chosen, allowed(chosen))
    return TimedStep(tuple(step.by_layer(chosen, whole)), whole)
