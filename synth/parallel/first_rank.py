"""What the first rank alone decides and sends: all have the same model, as their fingerprints say.

A plan is small beside the work of finding it. So are the texts of its modules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from synth.base.errors import InfeasibleError, SynthError
from synth.base.units import show_bytes
from synth.network.graph import Network
from synth.network.plan.calls import MOST_RANKS
from synth.network.plan.idle import idle_processes
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.counted_plan import least_counted
from synth.parallel.fast_plan import for_words
from synth.parallel.layer_plans import LayerPlans
from synth.planning.plan import Plan
from synth.runtime.grid.log import LOG

if TYPE_CHECKING:
    from synth.runtime.grid.ranks import Ranks
    from synth.runtime.model.planned_words import PlannedWords

    Counts = Callable[[], Callable[[NetworkPlan], PlannedWords]]  # gives `NetworkPlan.words_of`

T = TypeVar("T")


def chosen_by_first(
    network: Network, request: NetworkRequest, members: Ranks, counts: Counts | None = None
) -> LayerPlans:
    """What the first rank plans, which also renders the modules of all layers.

    counts: makes what counts the words of a plan in all calls of the model; None to take the plan as it is.
    """
    from synth.codegen.module import expect, module_texts

    def make() -> tuple[LayerPlans, dict[Plan, str]]:
        planned = plan_told(network, request, counts)
        plans, found = LayerPlans.of(planned), list[Plan]()
        for node in network.planned:
            if node.weighted and node.layer is not None:
                with suppress(SynthError):  # raised where the layer is made
                    found.append(plans.plan(node.layer, request.procs, request.resident_weights))
        return plans, module_texts(found)

    plans, texts = from_first(make, members.everyone)
    expect(texts)
    return plans


def plan_told(network: Network, request: NetworkRequest, counts: Counts | None = None) -> NetworkPlan:
    """The plan of a request; one for the fewest words where none for time fits the memory.

    Says so, and whether processes are idle; with the level DEBUG of logging also the summary of the plan.
    """
    try:
        plan = plan_network(network, request)
    except InfeasibleError:
        if request.objective != "time" or request.limit_bytes is None:
            raise
        plan, limit = plan_network(network, for_words(request)), show_bytes(request.limit_bytes)
        LOG.info("synth: no plan for time fits %s per process; this one is for the fewest words", limit)
    if counts is not None and 1 < plan.request.procs <= MOST_RANKS:
        plan = least_counted(replace(plan, words_of=counts()))
    timed = plan.request.objective == "time"
    for line in idle_processes(plan):
        LOG.info(
            "synth: %s%s", line, '; objective="words" takes all that each layer can use' if timed else ""
        )
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("%s", plan)
    return plan


def from_first(make: Callable[[], T], ranks: Ranks) -> T:
    """What the first rank makes, on every rank. What it raises is raised on every rank."""
    result: Any = None
    if ranks.me == 0:
        try:
            result = make()
        except SynthError as error:
            result = error
        except Exception as error:  # an internal error may hold what cannot be sent
            result = RuntimeError(f"rank {ranks.rank} could not plan the model: {error!r}")
            result.__cause__ = error
    result = ranks.from_first(result)
    if isinstance(result, Exception):
        raise result
    made: T = result
    return made
