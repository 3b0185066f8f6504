"""Predictions of a forward pass: resident weights, the model of training steps, idle ranks explained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from flat_machine import ALPHA, BANDWIDTH, BETA, FLAT, RATE

import synth
from synth.base.errors import UsageError
from synth.cli.main import main
from synth.machine.hierarchy import Compute, Machine
from synth.network.file import parse_network
from synth.network.graph import Network
from synth.network.plan.idle import BusyStep
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.prediction.predict import compare, predict
from synth.prediction.prediction import Prediction, PredictionRequest
from synth.prediction.profile import LayerTimes, MeasuredTimes, NominalRate

NORMED = """
network: three
input: [8, 16, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - batchnorm: {}
  - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: c, conv2d: {out_channels: 64, kernel: 3, padding: 1}}
"""
THREE = parse_network(NORMED, "three.yaml")
OPERATIONS = 2 * 9 * 144 * (16 * 32 + 32 * 32 + 32 * 64)  # of one sample
WEIGHTS = 9 * (16 * 32 + 32 * 32 + 32 * 64)


def asked(
    procs: int, network: Network = THREE, machine: Machine = FLAT, **changes: object
) -> PredictionRequest:
    made = PredictionRequest(network, machine, NominalRate(machine), procs, network.input[0], training=False)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_samples_alone_move_nothing_and_hold_all_weights() -> None:
    made = predict(asked(8), "data")
    touched = 2 * 32 * 144 * 4 / BANDWIDTH  # running statistics: the batch normalization reads and writes
    assert made.total.compute == pytest.approx(OPERATIONS / RATE + touched)
    assert made.total.comm == 0
    assert made.whole == 3
    assert made.total.used_bytes >= 4 * (WEIGHTS + 144 * (16 + 32))
    own = predict(asked(8), "plan")
    assert own.held_bytes is not None
    assert own.held_bytes >= 4 * (WEIGHTS + 144 * (32 + 64))  # the input and the output of the last layer
    assert "at its peak a rank of `parallelize` holds" in str(own)
    assert predict(asked(8, training=True), "plan").held_bytes is None


def test_filters_move_activations_alone() -> None:
    """Ranks gather the inputs of all layers, of which each has an eighth."""
    slow = replace(FLAT, compute=Compute(1e10, BANDWIDTH), overlap=0.0)
    made = predict(asked(8, machine=slow), "filter")
    inputs = [8 * 144 * channels * 4 / 8 for channels in (16, 32, 32)]
    assert made.total.comm == pytest.approx(sum(7 * (ALPHA + size * BETA) for size in inputs))
    assert made.total.compute == pytest.approx(OPERATIONS / 1e10 + 2 * 32 * 144 * 4 / BANDWIDTH)


def test_rows_are_comparable_with_those_of_training() -> None:
    """A forward pass is the forward part of a training step with whole weights but for the statistics."""
    forward = predict(asked(8), "data")
    training = predict(asked(8, training=True), "data")
    for one, other in zip(forward.rows, training.rows, strict=True):
        extra = 32 * 144 * 4 / BANDWIDTH if one.name == "a" else 0.0  # statistics read the words once more
        assert other.forward == pytest.approx(one.forward + extra)
    assert forward.rows[0].backward == forward.rows[0].exchange == forward.rows[0].update == 0


def test_no_strategy_is_faster_than_the_plan() -> None:
    made = compare(asked(8))
    own = next(each for each in made.predictions if each.strategy == "plan")
    assert own.seconds <= min(each.seconds for each in made.predictions) * (1 + 1e-9)
    assert "ms per forward pass" in str(made)
    assert "resident weights, running batch norm" in str(made)


def test_a_profile_gives_the_rate_of_the_forward_pass() -> None:
    times = MeasuredTimes({name: LayerTimes(1e-3, 5e-3, 0.0) for name in "abc"}, "measured")
    assert predict(asked(1, compute_times=times), "plan").total.compute == pytest.approx(8 * 3e-3, rel=0.1)


@pytest.mark.slow
def test_weights_beyond_the_memory_are_cut() -> None:
    """The plan then holds less, and a strategy that cannot is refused."""
    free = predict(asked(8), "plan")
    assert free.held_bytes is not None
    small = replace(FLAT, limit_bytes=free.held_bytes - 1)
    made = compare(asked(8, machine=small))
    own = next(each for each in made.predictions if each.strategy == "plan")
    assert own.held_bytes is not None
    assert own.held_bytes < free.held_bytes
    assert own.held_bytes <= small.limit_bytes
    assert any("needs more memory" in why for _, why in made.refused)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"table3": True}, "prices training steps alone"), ({"batch_norm": "global"}, "running statistics")],
)
def test_what_is_of_training_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict(asked(4, **changes), "plan")


def test_python_says_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "three.yaml"
    file.write_text(NORMED)
    code = main(["predict", str(file), "--procs", "4", "--machine", "h100", "--pass", "forward", "--json"])
    printed = json.loads(capsys.readouterr().out)
    made = synth.predict(file, 4, "h100", pass_="forward")
    assert code == 0
    same = json.dumps(made.to_json()).replace("see table3", "see --table3")  # each door names the option
    assert printed == json.loads(same)
    assert {each["pass"] for each in printed["made"]} == {"forward"}
    one = synth.predict(THREE, 4, "h100", pass_="forward", strategy="plan")
    assert isinstance(one, Prediction)
    assert "comm bwd" not in str(one)
    with pytest.raises(UsageError, match="pass_ is 'backward'"):
        synth.predict(file, 4, "h100", pass_="backward")


@pytest.mark.parametrize("training", [True, False])
def test_idle_ranks_are_explained(training: bool) -> None:
    """One message costs more than all computing, so one rank computes; the sentence says by how much."""
    slow = replace(FLAT, levels=(replace(FLAT.levels[0], alpha=1.0),))
    single = parse_network(NORMED.replace("[8,", "[1,"), "one.yaml")
    made = predict(asked(4, single, slow, training=training), "plan")
    assert "processes idle: some in 3 of 3 layers, at most 3 of 4" in made.idle
    assert " on 4 instead of " in made.idle
    assert "moving words" in made.idle
    assert made.idle in str(made)
    assert made.to_json()["idle"] == made.idle
    assert predict(asked(4, single, slow, training=training), "filter").idle == ""


def test_the_busy_step_uses_all_ranks() -> None:
    slow = replace(FLAT, levels=(replace(FLAT.levels[0], alpha=1.0),))
    single = parse_network(NORMED.replace("[8,", "[1,"), "one.yaml")
    plan = plan_network(single, NetworkRequest(4, "time", machine=slow, resident_weights=True))
    assert plan.busy is not None
    busy = plan.busy()
    assert isinstance(busy, BusyStep)
    assert {placed.grid.size for placed in busy.placed_grids} == {4}
    assert busy.seconds > plan.cost
