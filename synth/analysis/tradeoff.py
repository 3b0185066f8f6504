"""Words against memory for a plan's layer and processes: the bound a curve, the best plans a staircase."""

from __future__ import annotations

from dataclasses import dataclass

from synth.base.ranges import spaced
from synth.bounds.regimes import Regime, regime_of
from synth.bounds.universal import universal_bound
from synth.planning.plan import Plan
from synth.search.branch_and_bound import Request, search_or_none


@dataclass(frozen=True)
class Trade:
    """At a memory limit of `limit_words`: the bound, and the best plan's words (None: none fits)."""

    limit_words: int
    bound: float
    regime: Regime
    words: int | None


def memory_curve(plan: Plan, points: int = 48, searches: int = 6) -> list[Trade]:
    """Received words per process at `points` memory sizes, around what the plan needs and what it must hold.

    At most `searches` plans are sought, for limits that fall at least 2.5-fold each; `words` is the least
    of those that fit, hence attained, and the optimum at the limits that were tried.
    """
    nest, procs, cap = plan.nest, plan.procs, plan.distribution.most_real_work
    least = max(4, -(-nest.total_words // procs))
    highest = max(4 * least, 4 * plan.used_words)
    steps = _plans(plan, highest, searches)
    sizes = sorted({*spaced(least // 4, highest, points), *(memory for memory, _ in steps)})
    curve = []
    for size in sizes:
        bound = universal_bound(nest, procs, size, cap)
        words = min((words for memory, words in steps if memory <= size), default=None)
        curve.append(Trade(size, bound.words, regime_of(bound, nest), words))
    return curve


def _plans(plan: Plan, highest: int, searches: int) -> list[tuple[int, int]]:
    """(memory, words) of plans, both in words, memory falling."""
    found = [(plan.used_words, plan.words["total"])]
    limit = highest
    for _ in range(searches):
        if limit < plan.nest.total_words / plan.procs:
            break  # the shares alone do not fit
        request = Request(
            plan.nest,
            plan.procs,
            limit,
            balance=plan.balance,
            exact=plan.exact_procs,
            pass_=plan.task,
            transposed=plan.layer.transposed,
        )
        best = search_or_none(request)
        if best is None:
            break
        tiling = best.tiling
        found.append((tiling.used_words, tiling.words))
        limit = min(tiling.used_words - 1, int(limit / 2.5))
    return found
