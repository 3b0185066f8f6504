"""The plans among which a memory limit chooses: a ladder that does not depend on the limit.

What a step holds is known only of a finished plan. A limit of layers bounds less: the words held
throughout, and the working memory of each layer. So plans are made for fixed limits of layers, and the memory
of a step of each is counted. Of the plans whose step fits a user's limit the cheapest is taken. A larger
limit admits these and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from synth.base.doors import option
from synth.base.errors import InfeasibleError
from synth.network.plan.plan import NetworkPlan

AMPLE_BYTES = 1 << 60  # a limit of layers that binds none
STEPS = 4, 2  # from what the layers of the ample plan use to the least limit that they fit; on to the least

PlanWithin = Callable[[int], NetworkPlan]  # limit of layers, in bytes -> the plan within it


def without_prefetch(plan: NetworkPlan) -> NetworkPlan:
    """The same plan as it runs under a limit: nothing is prefetched, so a step holds less."""
    return _under(plan, AMPLE_BYTES)


def cheapest_within(
    limit_bytes: int, free: Iterable[NetworkPlan], limited: Iterable[NetworkPlan]
) -> NetworkPlan:
    """The plan whose step fits a limit: the first of the free ones, else the cheapest of the limited ones.

    free: plans without a limit of layers; each may do all that later ones may. limited: those with one.
    Raises `InfeasibleError` if no step fits; it names the least memory that any of them needs.
    """
    least: list[int] = []
    for plan in _limited_to(free, limit_bytes):
        least.append(plan.held_bytes)
        if least[-1] <= limit_bytes:
            return plan
    fitting = []
    for plan in _limited_to(limited, limit_bytes):
        least.append(plan.held_bytes)
        if least[-1] <= limit_bytes:
            fitting.append(plan)
    if fitting:
        return min(fitting, key=lambda plan: plan.cost)
    raise InfeasibleError(
        f"{plan.network.name}: a step of none of the {len(least)} plans that were tried fits {limit_bytes} "
        f"bytes per process; {option('memory', min(least))} would do",
        enough_bytes=min(least),
    )


def limited_plans(plan_within: PlanWithin, least_of: Callable[[NetworkPlan], int]) -> Iterator[NetworkPlan]:
    """Plans for fixed limits of layers, from an ample one to the least that has a plan.

    least_of: the least limit that the layers of a plan fit on their grids. Geometric steps lead from what the
    layers of the ample plan use to that: the same grids with smaller tiles, or other grids. More lead to the
    least limit. They divide what layers may share: their working memory, and copies of weights that are
    resident.
    """
    ample = plan_within(AMPLE_BYTES)
    yield ample
    found = _tightest(plan_within)
    if found is None:
        return
    least, tightest = found
    held = 0 if ample.request.resident_weights else ample.resident_words * ample.word_bytes
    rungs = ample.used_bytes - held, least_of(ample) - held, least - held
    for limit in [*_between(*rungs[:2], STEPS[0])[1:], *_between(*rungs[1:], STEPS[1])]:
        try:
            yield plan_within(held + limit)
        except InfeasibleError:  # layers fit one by one, but no weights that were found fit together
            continue
    yield tightest


def _between(most: int, few: int, steps: int) -> list[int]:
    """Limits in geometric steps from the first to the second, which is not one of them."""
    if not 0 < few < most:
        return []
    return [math.ceil(most * (few / most) ** (step / steps)) for step in range(steps)]


def _tightest(plan_within: PlanWithin) -> tuple[int, NetworkPlan] | None:
    """The least limit of layers that has a plan, as refusals name it, and this plan."""
    asked = 1
    while True:
        try:
            return asked, plan_within(asked)
        except InfeasibleError as fault:
            if fault.enough_bytes is None or fault.enough_bytes <= asked:
                return None
            asked = fault.enough_bytes


def _limited_to(plans: Iterable[NetworkPlan], limit_bytes: int) -> Iterator[NetworkPlan]:
    """The plans, with the limit of the user in place of that of layers."""
    for plan in plans:
        yield plan if plan.limit_bytes is None else _under(plan, limit_bytes)


def _under(plan: NetworkPlan, limit_bytes: int) -> NetworkPlan:
    return replace(plan, request=replace(plan.request, limit_bytes=limit_bytes))
