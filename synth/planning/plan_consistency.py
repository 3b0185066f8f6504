"""What must hold between the decisions of a plan, and the numbers of a search that a plan file records.

`plan_file` reads decisions. Here they are held against each other: a tensor that one pass reuses must be
saved by another one, the memory limit must be kept, and w* must be that of the grids that were searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from synth.base.arithmetic import same_number
from synth.layer.passes import reuse_intervals
from synth.planning.algorithm import algorithm_name
from synth.planning.plan import Plan, is_2d
from synth.planning.plan_json import PROVEN, UNREAD, exact_json, float_json, unread_digest
from synth.search.grids import Space, work_cap


def decision_faults(plan: Plan) -> Iterator[str]:
    """Contradictions between decisions, a phrase each that names the field."""
    yield from _saved_tensors(plan)
    limit = plan.limit_bytes
    if limit is not None and plan.used_words > limit // plan.nest.word_bytes:
        yield f"memory.limit_bytes is {limit}, but the plan needs {plan.used_bytes}"
    if plan.exact_procs and plan.used_procs != plan.procs:
        yield f"balance.exact_procs is true, but the grid uses {plan.used_procs} of {plan.procs} processes"


def number_faults(plan: Plan, data: Mapping[str, Any]) -> Iterator[str]:
    """Numbers of a plan file that do not follow from its decisions, a phrase each that names the field."""
    for key in data.keys() - known_keys(plan):
        yield f"{key} is no field of a plan"
    yield from _work(plan, "time" in data)
    yield from _name(plan)
    yield from _floats(plan, data)
    told = (*UNREAD, *([PROVEN] if PROVEN in data else []))
    if any(key in data for key in told) and data.get("digest") != unread_digest(data):
        yield f"digest is not that of {', '.join(told)}, which were edited"
    if plan.proven_words is not None and not 0 <= plan.proven_words < plan.words["total"]:
        yield f"{PROVEN} is {plan.proven_words}, but the plan receives {plan.words['total']}"


def known_keys(plan: Plan) -> set[str]:
    """The fields that the file of a plan may have."""
    return {*exact_json(plan), *float_json(plan), *UNREAD, PROVEN, "algorithm", "digest"}


def _saved_tensors(plan: Plan) -> Iterator[str]:
    """A tensor is reused by the second pass that reads it if, and only if, the first one saves it."""
    shared = reuse_intervals(plan.passes) if plan.later else {}
    saved = {t for t, (first, _) in shared.items() if t in plan.pass_plans[plan.passes.index(first)].saves}
    for i, pass_plan in enumerate(plan.pass_plans):
        pairs = (
            ("kept", pass_plan.reuses, {t for t in saved if shared[t][1] == pass_plan.pass_}, "saved before"),
            (
                "keeps",
                pass_plan.saves,
                {t for t, (first, _) in shared.items() if first == pass_plan.pass_},
                "reused later",
            ),
        )
        for key, stated, possible, how in pairs:
            for tensor in sorted(stated - possible):
                yield f"passes[{i}].{key} names {tensor.lower()}, which is not {how}"
        for tensor in sorted(pairs[0][2] - pass_plan.reuses):
            yield f"passes[{i}].kept lacks {tensor.lower()}, which an earlier pass keeps"


def _work(plan: Plan, timed: bool) -> Iterator[str]:
    """w* is the least work over the grids that were searched: those that agree on the pinned axes."""
    if plan.least_work is None:
        if plan.pinned:
            yield "balance.pinned names axes, but balance.least_work is null: nothing was searched"
        return
    pinned: dict[str, int] = {axis: getattr(plan.grid, axis) for axis in plan.pinned}
    least = Space(plan.nest, plan.procs, pinned, plan.exact_procs).least_work
    if plan.least_work != least:
        yield f"balance.least_work is {plan.least_work}, but the plan makes it {least}"
    elif not timed and plan.load > work_cap(least, plan.balance):
        more = plan.load / least - 1
        yield f"balance.allowed is {plan.balance:g}, but the plan does {more:g} more work"


def _name(plan: Plan) -> Iterator[str]:
    """A plan that no search made may have the name that needs no search, too."""
    two_d = is_2d(plan.distribution, plan.pass_plans)
    if two_d != (plan.algorithm == "2D"):
        yield f"algorithm is {plan.algorithm}, which the grid contradicts"
    elif not two_d and (plan.least_work is not None or plan.algorithm != "3D"):
        name = algorithm_name(plan.layer, plan.procs, plan.distribution, plan.pass_plans)
        if plan.algorithm != name:
            yield f"algorithm is {plan.algorithm}, but the plan makes it {name}"


def _floats(plan: Plan, data: Mapping[str, Any]) -> Iterator[str]:
    """Bounds are computed with floating point: the last digits may differ between machines."""
    for key, derived in float_json(plan).items():
        if key in data and not _near(data[key], derived):
            yield f"{key} is {str(data[key])[:80]}, but the plan makes it {str(derived)[:80]}"


def _near(stated: Any, derived: Any) -> bool:
    if isinstance(derived, dict):
        return (
            isinstance(stated, dict)
            and stated.keys() == derived.keys()
            and all(_near(stated[key], derived[key]) for key in derived)
        )
    if isinstance(derived, float):
        return same_number(stated, derived)
    return json.dumps(stated) == json.dumps(derived)
