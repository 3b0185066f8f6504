"""The tradeoff between memory and received words, for the layer and processes of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from synth.base.ranges import spaced
from synth.bounds.regimes import Regime, regime_of
from synth.planning.plan import Plan
from synth.schedule.distribution import Distribution
from synth.search.branch_and_bound import search_or_none
from synth.search.request import Request


@dataclass(frozen=True)
class TradeoffPoint:
    """The bound and the best known plan at one memory limit. All numbers are in words per process."""

    limit_words: int
    bound: float
    regime: Regime
    words: int | None


def memory_curve(plan: Plan, points: int = 48, searches: int = 6) -> list[TradeoffPoint]:
    """Received words per process at about `points` memory limits, from less than the shards to ample memory.

    The function searches at most `searches` plans, each with at most 1/2.5 of the previous limit. `words`
    is the least of the plans that fit. So a plan attains it, and it is the optimum at the searched limits.
    The bound is that of the passes of the plan, at the largest load of all these plans: it holds for each.
    """
    least = max(4, -(-plan.nest.total_words // plan.procs))
    highest = max(4 * least, 4 * plan.used_words)
    steps = _plans(plan, highest, searches)
    load = max(load for _, _, load in steps)
    sizes = sorted({*spaced(least // 4, highest, points), *(memory for memory, _, _ in steps)})
    curve = []
    for size in sizes:
        bound = plan.bound_at(load, size)
        words = min((words for memory, words, _ in steps if memory <= size), default=None)
        curve.append(TradeoffPoint(size, bound.words, regime_of(bound), words))
    return curve


def _plans(plan: Plan, highest: int, searches: int) -> list[tuple[int, int, int]]:
    """(memory, received words, load) of plans with falling memory limits from `highest` words, and of `plan`.

    The load is in multiply-adds on real input, of the most loaded process in one pass.
    """
    found = [(plan.used_words, plan.words["total"], plan.distribution.most_real_work)]
    limit = highest
    for _ in range(searches):
        if limit < plan.nest.total_words / plan.procs:
            break  # the shards do not fit
        request = Request(
            plan.nest,
            plan.procs,
            limit,
            balance=plan.balance,
            exact=plan.exact_procs,
            pass_=plan.task,
            transposed=plan.layer.transposed,
            gradients=plan.gradients,
            turnable=plan.nest.turnable,
        )
        best = search_or_none(request)
        if best is None:
            break
        tiling, nest = best.tiling, plan.nest.turn(best.turned)
        found.append((tiling.used_words, tiling.words, Distribution(nest, best.grid).most_real_work))
        limit = min(tiling.used_words - 1, int(limit / 2.5))
    return found
