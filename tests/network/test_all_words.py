"""Summaries of network plans: all words that a process receives, who works, and which plan is shown."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import synth
from synth.analysis.today_network import with_today
from synth.machine.file import load_machine
from synth.network.file import load_network, parse_network
from synth.network.plan.cost_text import Received, cost_text
from synth.network.plan.report import report
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.network.step_time.calls import gathered_text
from synth.parallel.plan_digest import digest_of_plan
from synth.prediction.replay import replay
from synth.reports.html.html_network import tiles

GATHERED = """
network: gathered
input: [4, 8, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: n, batchnorm: {}}
  - {name: whole, gathered: {shape: [4, 8, 16, 16]}}
  - {name: b, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
"""


def test_words_of_calls_and_normalizations_are_in_every_summary(tmp_path: Path) -> None:
    made = plan_network(parse_network(GATHERED, "gathered.yaml"), NetworkRequest(4, training=True))
    (call,) = made.calls
    assert call.words == call.back == 4 * 8 * 16 * 16 * 3 // 4  # all of the input but its share
    beside = made.words_beside
    assert beside == {"calls": call.words + call.back, "normalizations": made.statistics_words}
    every = round(made.cost + sum(beside.values()))
    said = f"at most {every:,} words received per process".replace(",", " ")
    assert said in str(made)
    assert said in report(made)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(made.to_json()))
    read = synth.read_plan(file)
    assert isinstance(read, synth.NetworkPlanFile)
    assert read.records() == made.records()
    assert said in str(read)
    assert read.to_json()["beside"] == beside
    value, name, remark = tiles(read.to_json())[1]
    assert (value, name) == (f"{every:,}".replace(",", " "), "words in all")
    assert all(cause in remark for cause in beside)


def test_forward_passes_count_calls_once_and_plans_without_them_have_no_entry() -> None:
    network = parse_network(GATHERED, "gathered.yaml")
    forward = plan_network(network, NetworkRequest(4, resident_weights=True))
    assert forward.words_beside == {"calls": forward.calls[0].words}
    plain = synth.plan("examples/networks/vgg16.yaml", 4)
    assert "beside" not in plain.to_json()
    assert "all in all" not in report(plain)


def test_costs_as_text() -> None:
    assert cost_text("words", 7, Received(1200, True)) == "1 200 words received by the busiest process"
    assert cost_text("words", 7, Received(1200, False)) == "at most 1 200 words received per process"
    assert cost_text("time", 0.0012, Received(5, True)) == "1.2 ms"


class Recurrent(nn.Module):
    """Steps that no layer and no edge of a network has: a recurrence, a scan, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm = nn.Conv1d(4, 4, 3, padding=1), nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).cumsum(-1)
        return y + self.lstm(y.transpose(1, 2))[0].transpose(1, 2)


@pytest.mark.parametrize("objective", ["words", "time"])
@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.one_in(2)
def test_a_plan_of_a_model_says_all_words_of_the_busiest_rank(
    mode: str, objective: str, tmp_path: Path
) -> None:
    """In its summary, report, file, the file's summary, page and table, and in no sum of maxima."""
    model = Recurrent().train(mode == "training")
    machine = "a100" if objective == "time" else None
    made = synth.plan_model(model, (1, 4, 24), 4, mode=mode, objective=objective, machine=machine)
    most = max(made.words.step)
    assert made.received == (most, True)
    assert most != round(made.cost) + sum(made.words_beside.values())
    said = f"{most:,} words received by the busiest process".replace(",", " ")
    data, words = with_today(made), objective == "words"
    assert (said in str(made)) == words
    assert f"all in all {said}" in report(made)
    assert data["received"] == data["today"][0]["words"] == most
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data))
    assert (said in str(synth.read_plan(file))) == words
    value, name, remark = tiles(data)[1]
    assert not words or (value, name) == (f"{most:,}".replace(",", " "), "words in all")
    assert ("busiest" in remark) == words
    assert digest_of_plan(made) == digest_of_plan(pickle.loads(pickle.dumps(made)))


def test_a_replay_says_how_many_ranks_work_and_which_weights_are_whole() -> None:
    network = load_network("examples/networks/tutorial.yaml")
    asked = NetworkRequest(1024, "time", training=True, machine=load_machine("a100"))
    played = replay(plan_network(network, asked))
    used = [placed.grid.size for placed in played.plan.placed_grids]
    assert max(used) < 1024
    assert f"ranks at work in a layer: {min(used)}" in str(played)
    assert "of 1024; weights in shards" in str(played)
    assert played.to_json()["working_procs"] == [min(used), max(used)]


@pytest.mark.parametrize("strict", [True, False])
def test_the_table_of_strategies_says_what_it_does_with_small_layers(strict: bool) -> None:
    network = load_network("examples/networks/tutorial.yaml")
    asked = NetworkRequest(4, training=True, strict_axes=strict, saves=frozenset({"Out"}))
    last = report(plan_network(network, asked)).splitlines()[-1]
    assert ("is cut along other axes" in last) != strict
    assert "`parallelize`" in last
    assert "gathered slices of Out stay" in report(plan_network(network, asked))


def test_what_every_rank_gathers_is_named_with_its_share() -> None:
    network = parse_network(GATHERED, "gathered.yaml")
    words = 4 * 8 * 16 * 16  # that each of the four nodes reads
    assert gathered_text(network) == (
        "every rank gathers all that these calls read, and computes them whole: whole (8 192 words); they "
        "read 25.0% of the words that calls read"
    )
    assert words == 8192
    assert gathered_text(load_network("examples/networks/tutorial.yaml")) == ""
