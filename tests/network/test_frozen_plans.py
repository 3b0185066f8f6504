"""Plans of random networks are those of before: the same grids, words and ids.

`tests/data/network_plans.json` was written before words were counted for many layers together. After a change
that is meant to change plans, `python tests/network/test_frozen_plans.py` writes it anew.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from random_networks import random_network

from synth.base.user_files import digest_of
from synth.network.file import parse_network
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest

DATA = Path(__file__).resolve().parents[1] / "data" / "network_plans.json"
PROCS = (4, 6, 16, 60, 64, 100, 256, 720, 4096)
SEEDS = 60
QUICK = 10


def planned(seed: int) -> NetworkPlan:
    """The plan of a random network: of a training step, a forward pass, or with weights that stay."""
    draw = random.Random(seed)
    procs, mode = draw.choice(PROCS), draw.choice(("forward", "training", "resident"))
    network = parse_network(random_network(seed, 3 + seed % 9), "random.yaml")
    request = NetworkRequest(procs, training=mode == "training", resident_weights=mode == "resident")
    return plan_network(network, request)


def said(plan: NetworkPlan) -> list[object]:
    """The id, the words and the lower bound of a plan. The id covers grids, orders and memory of layers."""
    data = plan.to_json()
    data.pop("beside", None)  # of normalizations; it is not in the plans that were kept
    return [digest_of(data), plan.cost, plan.lower_bound]


@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, SEEDS))]
)
@pytest.mark.one_in(4)
def test_plans_are_those_of_before(seed: int) -> None:
    assert said(planned(seed)) == json.loads(DATA.read_text())[seed]


if __name__ == "__main__":
    rows = [json.dumps(said(planned(seed))) for seed in range(SEEDS)]
    DATA.write_text("[\n" + ",\n".join(rows) + "\n]\n")
