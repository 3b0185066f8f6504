"""Whatever moves is priced in the bytes of its dtype: plans for time, replays, the oracle's strategies."""

from __future__ import annotations

import pytest

from synth.machine.hierarchy import Compute, Level, Machine
from synth.network.file import parse_network
from synth.network.graph import Network
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.prediction.predict import predict
from synth.prediction.prediction import PredictionRequest
from synth.prediction.profile import NominalRate
from synth.prediction.replay import replay

BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
BETA = 1e-9
# messages have no latency and computing takes no time, so all seconds are proportional to bytes
LINKS = Machine("links", (Level("all", None, 0.0, BETA),), Compute(1e30, 1e11), algorithms=("ring",))
TEXT = """
network: three
input: [8, 16, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 64, kernel: 3, stride: 2, padding: 1}}
  - {name: c, conv2d: {out_channels: 256, kernel: 1, stride: 2}}
"""


def network(dtype: str) -> Network:
    return parse_network(TEXT.replace("layers:", f"dtype: {dtype}\nlayers:"), "three.yaml")


def planned(dtype: str, objective: str, training: bool) -> NetworkPlan:
    asked = NetworkRequest(16, objective, training, machine=LINKS, exact_procs=objective == "time")
    plan = plan_network(network(dtype), asked)
    assert len(plan.edge_words) > len(plan.free_edges)  # some redistribution moves words
    return plan


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("training", [False, True])
def test_a_plan_for_time_prices_redistribution_in_bytes(dtype: str, training: bool) -> None:
    plan = planned(dtype, "time", training)
    for edge, words in plan.edge_words.items():
        assert plan.edge_bytes(edge) == words * BYTES[dtype]
        assert plan.edge_costs[edge] == pytest.approx(words * BYTES[dtype] * BETA)


@pytest.mark.parametrize("dtype", BYTES)
def test_a_replay_of_a_plan_for_words_sends_bytes(dtype: str) -> None:
    plan = planned(dtype, "words", training=False)
    tasks = {task.name: task for task in replay(plan).tasks if " -> " in task.name}
    assert tasks
    for edge, words in plan.edge_words.items():
        task = tasks[f"{edge.source} -> {edge.target}"]
        assert task.sent == (words * BYTES[dtype],)
        assert task.seconds == pytest.approx((words * BYTES[dtype] * BETA,) * 2)


def test_a_replay_of_a_training_step_scales_with_the_dtype() -> None:
    replays = {dtype: replay(planned(dtype, "words", training=True)) for dtype in BYTES}
    (link,) = replays["float32"].link_bytes
    for dtype, word_bytes in BYTES.items():
        assert replays[dtype].link_bytes == (link * word_bytes / 4,)


@pytest.mark.parametrize("strategy", ["data", "spatial", "filter", "channel", "data+filter"])
def test_the_oracle_prices_communication_and_memory_in_bytes(strategy: str) -> None:
    seconds, memory = {}, {}
    for dtype in BYTES:
        request = PredictionRequest(network(dtype), LINKS, NominalRate(LINKS), 4, 8, groups=2, table3=True)
        total = predict(request, strategy).total
        seconds[dtype], memory[dtype] = total.comm, total.used_bytes
    assert seconds["float32"] > 0
    assert seconds["float64"] / 2 == seconds["bfloat16"] * 2 == pytest.approx(seconds["float32"])
    assert memory["float64"] / 2 == memory["bfloat16"] * 2 == pytest.approx(memory["float32"])


def test_work_bound_by_memory_is_priced_in_bytes() -> None:
    update = {}
    for dtype in BYTES:
        request = PredictionRequest(network(dtype), LINKS, NominalRate(LINKS), 1, 8, table3=True)
        update[dtype] = predict(request, "serial").total.update
    assert update["float64"] / 2 == update["bfloat16"] * 2 == pytest.approx(update["float32"])
