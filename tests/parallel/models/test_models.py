"""Models of other libraries, and layers that they have, on four real ranks: they train as in one process."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from rank_pool import RankPool, pool_of

GRIDS: dict[str, Any] = {"rows_channels": {"h": 2, "c": 2}, "free": None}
STRATEGIES = ["data", "spatial", "channel", "filter", "rows_channels"]
needs_models = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("monai") is None,
    reason="transformers or monai is absent; pip install -e '.[models]'",
)
pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "model_ranks.py", 4)


def assert_trains(ranks: RankPool, family: str, plan: Any, models: int) -> None:
    """All models of a family give the outputs, losses and states of one process, and words move."""
    for rank in ranks.call("train", family, plan):
        assert len(rank) == models
        for name, measured in rank.items():
            assert measured["error"] < 2e-4, name
            assert measured["words"] > 0, name


@pytest.mark.slow
@needs_models
def test_models_train_as_in_one_process(ranks: RankPool) -> None:
    assert_trains(ranks, "tiny", None, models=8)
    assert "gathered" not in ranks.said()


@needs_models
@pytest.mark.slow
@pytest.mark.parametrize("plan", STRATEGIES)
def test_models_train_with_every_strategy(plan: str, ranks: RankPool) -> None:
    assert_trains(ranks, "tiny", GRIDS.get(plan, plan), models=8)


@pytest.mark.slow
@pytest.mark.parametrize("plan", STRATEGIES)
def test_layers_train_with_every_strategy(plan: str, ranks: RankPool) -> None:
    assert_trains(ranks, "own", GRIDS.get(plan, plan), models=4)


@pytest.mark.slow
def test_layers_train_and_what_is_gathered_is_named(ranks: RankPool) -> None:
    assert_trains(ranks, "own", None, models=4)
    lines = [line.partition(": gathered, every rank computes it") for line in ranks.said().splitlines()]
    assert {name for name, found, _ in lines if found} == {"roll"}


@pytest.mark.slow
def test_a_state_moves_to_another_grid(ranks: RankPool) -> None:
    for rank in ranks.call("move_states"):
        assert all(error < 2e-4 for error in rank.values()), rank


def test_states_of_other_models_are_refused(ranks: RankPool) -> None:
    beginning = "the state is not of this model: "
    for rank in ranks.call("refused_states"):
        assert rank == [
            f"{beginning}it lacks 1.bias of shape (3,); load what the same model saved",
            f"{beginning}its 0.weight has the shape (3, 3, 1, 1), the model's (3, 3, 3, 3); "
            "load what the same model saved",
            f"{beginning}it has more.weight, which the model lacks; load what the same model saved",
            f"{beginning}it lacks 0.weight of shape (3, 3, 3, 3) but has module.0.weight; "
            "load what the same model saved",
        ]


@pytest.mark.slow
def test_what_is_frozen_evaluated_or_detached_stays_so(ranks: RankPool) -> None:
    """On two plans; then what was frozen is trained, and the other way round."""
    for rank in ranks.call("partly_trained", {"free": None, "spatial": "spatial"}):
        assert len(rank) == 2 * 8
        for name, measured in rank.items():
            assert measured["error"] < 1e-7, name
            assert measured["frozen"], name
            assert measured["same_mode"], name
            assert measured["late_messages"] == 0, name


@pytest.mark.parametrize("training", [True, False])
def test_dropout_functions_follow_the_mode(training: bool, ranks: RankPool) -> None:
    """Whatever the mode was when the model was traced."""
    for first, other, again in ranks.call("dropped_by_mode", training):
        in_training, in_evaluation = (first, other) if training else (other, first)
        assert 0.3 < in_training < 0.7
        assert in_evaluation == 0
        assert (0.3 < again < 0.7) if training else again == 0


def test_a_mode_in_which_forward_does_otherwise_has_a_plan(ranks: RankPool) -> None:
    for errors, dropped in ranks.call("other_modes"):
        assert max(errors) < 1e-9
        assert 0.3 < dropped < 0.7


def test_dropout_is_the_same_on_every_grid(ranks: RankPool) -> None:
    """It drops about as many words as asked, others in the next step, and nothing in evaluation."""
    p = 0.3
    for rank in ranks.call("dropped_by_plan", p, ["data", "filter", "spatial"]):
        assert rank["error"] < 2e-4
        first, second = rank["outs"][0]
        assert not np.array_equal(first, second)
        for other in rank["outs"][1:]:
            assert np.array_equal(first, other[0])
            assert np.array_equal(second, other[1])
        channels = first.reshape(32, -1)
        alive = channels[channels.sum(1) > 0]  # channels that Dropout2d left
        assert 0 < len(alive) < 32
        assert abs((alive > 0).mean() - (1 - p)) < 0.05
        np.testing.assert_allclose(alive.max(), 4 / (1 - p) ** 2, rtol=2e-3)


def test_a_fault_of_rank_0s_planner_is_raised_on_every_rank(ranks: RankPool) -> None:
    for told in ranks.call("fault_of_the_planner"):
        assert told == "rank 0 could not plan the model: KeyError('no such axis')"


def test_a_batch_that_may_be_input_or_output_is_not_guessed_to_be_either(ranks: RankPool) -> None:
    shape = "(4, 4, 8, 8)"
    for rank, got in enumerate(ranks.call("scattered")):
        assert np.array_equal(got["input"], got["whole"][rank : rank + 1])
        assert np.array_equal(got["output"], got["whole"][:, :, 2 * rank : 2 * rank + 2])
        assert got["refused"] == [
            f"a batch of {shape} may be input or output, which lie differently; "
            "add like='input' or like='output'",
            "a batch is like input or output, not like 'target'",
            f"a batch of (3, 4, 8, 8) is no input of {shape} nor output of {shape}; give the network a batch"
            " of another shape as it is",
            f"a batch of (3, 4, 8, 8) is no output of {shape}",
        ]
