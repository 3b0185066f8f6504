"""`synth.explain`: why a plan of a layer or a network is as it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from synth.analysis.explain_layer import LayerExplanation, explain_layer
from synth.analysis.explain_network import NetworkExplanation, explain_network
from synth.base.errors import UsageError
from synth.network.layer_or_network import read_plan
from synth.planning.plan import Plan

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan
    from synth.network.plan.plan_file import NetworkPlanFile


def explain(
    plan: Plan | NetworkPlan | NetworkPlanFile | str | os.PathLike[str],
) -> LayerExplanation | NetworkExplanation:
    """Why a plan is as it is; `print` shows it, `to_json` gives its data.

    Of a layer: what the words of the busiest process consist of, the lower bound, the next-best grids and
    their words, what limits. Of a network: its most expensive layers and redistributions. plan: a plan, or
    the name of a plan file. Raises `InputError` for a file that is no plan, or that was edited.
    """
    given = read_plan(plan) if isinstance(plan, str | os.PathLike) else plan
    if isinstance(given, Plan):
        return explain_layer(given)
    if not hasattr(given, "to_json") or "layers" not in (data := given.to_json()):
        raise UsageError(f"{plan!r} is no plan; give a plan, or the name of a plan file")
    return explain_network(data)
