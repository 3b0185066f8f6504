"""What the first rank says of its plan, and what it plans where none for time fits the memory."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from torch import nn

from synth.base.errors import InfeasibleError
from synth.machine.file import load_machine
from synth.network.graph import Network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.fast_plan import for_words
from synth.parallel.first_rank import plan_told
from synth.parallel.front_end.trace_model import trace_model

TIMED = NetworkRequest(
    procs=2,
    objective="time",
    training=True,
    machine=load_machine("lassen"),
    exact_procs=True,
    whole_weights=True,
    margin=0.1,
)


def network(extent: int = 32) -> Network:
    convolutions = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 2, 1)
    first, second, third = convolutions
    model = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), third)
    return trace_model(model, (1, 1, extent, extent)).network


def test_within_a_limit_that_no_plan_for_time_fits_one_for_words_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words, least = for_words(TIMED), {}
    for asked in (TIMED, words):
        with pytest.raises(InfeasibleError) as refused:
            plan_network(network(), replace(asked, limit_bytes=1))
        least[asked.objective] = refused.value.enough_bytes
    assert least["words"] < least["time"]
    with caplog.at_level(logging.INFO, "synth"):
        found = plan_told(network(), replace(TIMED, limit_bytes=least["words"]))
    assert found.request.objective == "words"
    assert found.held_bytes <= least["words"]
    assert "no plan for time fits" in caplog.text
    assert "the fewest words" in caplog.text
    enough = plan_told(network(), replace(TIMED, limit_bytes=least["time"]))
    assert enough.request.objective == "time"
    with pytest.raises(InfeasibleError, match="plans that were tried"):
        plan_told(network(), replace(TIMED, limit_bytes=least["words"] - 1))


def test_idle_processes_are_told_and_the_whole_plan_on_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "synth"):
        plan = plan_told(network(8), TIMED)
    assert all(placed.grid.size == 1 for placed in plan.placed_grids)
    (said,) = caplog.messages
    assert said.startswith("synth: processes idle: some in 4 of 4 layers, at most 1 of 2")
    assert 'objective="words"' in said
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "synth"):
        plan_told(network(8), for_words(TIMED))
    assert caplog.messages == [str(plan_network(network(8), for_words(TIMED)))]
