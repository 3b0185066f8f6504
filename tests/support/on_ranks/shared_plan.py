"""`synth.plan_model` on ranks of a test: the first rank searches, and the others are given what it finds.

Every rank traces the model by itself. `plan_ranks.py` calls `plan_model` on every rank, as users do.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any
from unittest import mock

import synth
from synth.network.graph import Network
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.first_rank import from_first
from synth.runtime.grid.ranks import Ranks


def shared_plan(model: Any, shape: tuple[int, ...], **options: Any) -> NetworkPlan:
    """The plan of a model for all ranks, which all call this."""
    ranks = Ranks.world()

    def searched(network: Network, request: NetworkRequest) -> NetworkPlan:
        return from_first(partial(plan_network, network, request), ranks)

    with mock.patch.object(importlib.import_module("synth.parallel.plan_model"), "plan_network", searched):
        return synth.plan_model(model, shape, ranks.size, **options)
