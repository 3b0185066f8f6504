"""What the first rank alone decides and sends: all have the same model, as their fingerprints say.

A plan is small beside the work of finding it. So are the texts of its modules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from synth.base.errors import SynthError
from synth.network.graph import Network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.layer_plans import LayerPlans
from synth.planning.plan import Plan

if TYPE_CHECKING:
    from synth.runtime.grid.ranks import Ranks

T = TypeVar("T")


def chosen_by_first(network: Network, request: NetworkRequest, members: Ranks) -> LayerPlans:
    """What the first rank plans, which also renders the modules of all layers."""
    from synth.codegen.module import expect, module_texts

    def make() -> tuple[LayerPlans, dict[Plan, str]]:
        plans, found = LayerPlans.of(plan_network(network, request)), list[Plan]()
        for node in network.planned:
            if node.weighted and node.layer is not None:
                with suppress(SynthError):  # raised where the layer is made
                    found.append(plans.plan(node.layer, request.procs, request.resident_weights))
        return plans, module_texts(found)

    plans, texts = from_first(make, members.everyone)
    expect(texts)
    return plans


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
