"""Words and seconds of the calls of a plan for which the planner has no layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.network.step_time.calls import CallCost, call_costs, counted_costs

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

MOST_RANKS = 1024  # for which the steps of a model are made: they hold the boxes of all ranks


def calls_of_plan(plan: NetworkPlan) -> list[CallCost]:
    """From the steps of the plan's model where it has one and ranks are few, from the network otherwise."""
    request, network = plan.request, plan.network
    divided = any(node.kind == "gathered" for node in network.nodes.values())
    if not divided or not plan.counted:
        return call_costs(network, request.procs, request.machine)
    return counted_costs(network, request.procs, request.machine, plan.words.calls)
