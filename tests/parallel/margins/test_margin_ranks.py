"""Rows that ranks compute although others own them: values of one process, words as planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from margin_ranks import STEPS
from rank_pool import RankPool

pytestmark = pytest.mark.ranks


SEEDS = {1: [101, 102, 106, 133], 2: [207, 210, 227, 238], 3: [304, 327, 332, 336]}  # by dimensions
TRAINED = {1: [101, 105, 113], 2: [202, 207, 219], 3: [305, 313, 319]}
SHUFFLED = {1: [163, 172], 2: [245, 246], 3: [347, 348]}  # with channels that become positions, and back
SELECTED = {1: [153, 163], 2: [246], 3: [355]}  # also with channels that are selected, repeated and averaged
SIZES = [4, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 3, 6))]


@pytest.fixture(scope="module", params=SIZES, ids="{} ranks".format)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    folder = tmp_path_factory.mktemp("ranks")
    with RankPool(Path(__file__).with_name("margin_ranks.py"), request.param, folder) as pool:
        yield pool


@pytest.mark.parametrize("dims", SEEDS)
@pytest.mark.one_in(4)
def test_values_are_those_of_one_process_and_words_those_planned(dims: int, ranks: RankPool) -> None:
    """With norms, skips, layers cut by input rows, and ranks with no rows of some layers."""
    every = ranks.call("several", SEEDS[dims], dims)
    for by_rank in zip(*every, strict=True):
        for found in by_rank:
            assert found["error"] < 1e-11, found
            assert found["counted"] == found["planned"], found
    least = 3 if len(every) > 2 else 0  # two ranks fetch little
    assert sum(bool(found["margins"] and found["fetched"]) for found in every[0]) >= least


@pytest.mark.parametrize("selects", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dims", SHUFFLED)
@pytest.mark.one_in(8)
def test_margins_reach_through_shuffles(dims: int, training: bool, selects: bool, ranks: RankPool) -> None:
    """Also of three to one, of one dimension alone, and where ranks have no rows of some layers."""
    seeds = (SELECTED if selects else SHUFFLED)[dims]
    every = ranks.call("several_trained" if training else "several", seeds, dims, True, selects)
    for by_rank in zip(*every, strict=True):
        for found in by_rank:
            kinds = "error", "value", "state", "gradient", "input"
            errors = [found[name] for name in kinds if name in found]
            assert max(errors) < 1e-10, found
            assert found["counted"] == found["planned"], found
    fetching = [bool(found["margins"] and found["fetched"]) for found in every[0]]
    assert len(every) < 4 or (all(fetching) if len(every) == 4 else any(fetching))


@pytest.mark.one_in(3)
@pytest.mark.slow
def test_a_model_with_calls_of_all_kinds(ranks: RankPool, tmp_path: Path) -> None:
    """Attention, gates, gathered calls and linear resizing have no margins; the rest has."""
    without, with_margins = (ranks.call("whole_model", share, str(tmp_path)) for share in (0.0, 0.25))
    for found in (*without, *with_margins):
        for each in (found, found["by_file"]):
            assert each["error"] < 1e-11
            assert each["counted"] == each["planned"]
    assert with_margins[0]["margins"]
    assert not without[0]["margins"]
    assert with_margins[0]["cost"] < without[0]["cost"]
    assert with_margins[0]["most"] < without[0]["most"]


def test_plans_for_time_and_within_a_limit_of_memory(ranks: RankPool, tmp_path: Path) -> None:
    every = ranks.call("other_plans", str(tmp_path))
    for plans in every:
        for name, found in plans.items():
            assert found["error"] < 1e-11
            assert found["counted"] == found["planned"]
            narrow = name == "within" and len(every) > 4  # blocks of few rows, of which none can be left out
            assert found["margins"] or narrow, (name, found)
        assert plans["within"]["held"] <= plans["within"]["limit"]


@pytest.mark.parametrize("dims", TRAINED)
@pytest.mark.one_in(2)
def test_gradients_are_those_of_one_process_and_words_those_planned(dims: int, ranks: RankPool) -> None:
    """Rings return to their owners, statistics are of owned rows, and no row counts twice."""
    every = ranks.call("several_trained", TRAINED[dims], dims)
    for by_rank in zip(*every, strict=True):
        for found in by_rank:
            assert max(found["value"], found["state"]) < 1e-11, found
            assert max(found["gradient"], found["input"]) < 1e-10, found
            assert found["counted"] == found["planned"], found
    assert sum(bool(found["margins"] and found["fetched"]) for found in every[0]) >= (
        2 if len(every) > 2 else 1
    )


@pytest.mark.parametrize("which", STEPS)
@pytest.mark.one_in(4)
def test_steps_of_models_with_checkpoints_and_batch_norms(
    which: str, ranks: RankPool, tmp_path: Path
) -> None:
    """Margins that are planned for a model in training; also in the file of a plan."""
    every = ranks.call("training_steps", which, str(tmp_path))
    for steps in every:
        for name, found in steps.items():
            assert max(found["value"], found["state"]) < 1e-11, (name, found)
            assert max(found["gradient"], found["input"]) < 1e-9, (name, found)
            assert found["counted"] == found["planned"], (name, found)
            assert sum(found["counted"]) == found["of_plan"], (name, found)
            # a byte less than the plan with margins holds leaves no room for any on two ranks
            assert found["margins"] or (name == "within" and len(every) == 2), (name, found)
            assert found["fits"]
            assert found["whole"]
            assert found["costs"][0] < found["costs"][1] or name not in (
                "plain",
                "local",
                "checkpointed",
                "by_file",
            )


def test_accumulated_steps_drop_the_same_words_with_margins(ranks: RankPool, tmp_path: Path) -> None:
    asked = (0.0, ""), (0.5, ""), (0.5, str(tmp_path))
    without, *wide = (ranks.call("dropped", *each)[0] for each in asked)
    for each in wide:
        assert each == pytest.approx(without, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("in_buckets", [False, True])
@pytest.mark.one_in(2)
def test_weights_after_steps_of_an_optimizer(
    ranks: RankPool, replicas: int, in_buckets: bool, tmp_path: Path
) -> None:
    if ranks.call("divides", replicas)[0]:
        for found in ranks.call("optimized", replicas, str(tmp_path) * in_buckets):
            assert found["apart"] < 1e-9
            assert found["words"] > 0


def test_a_step_in_lower_precision_is_that_of_one_process(ranks: RankPool) -> None:
    assert all(0.3 < each < 2 for each in ranks.call("low_precision_step"))


def test_what_is_not_planned_is_refused_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    every = ranks.call("refused", str(tmp_path))
    assert all(each == every[0] for each in every)
    given, much, plan, other = every[0]
    assert given == "recompute=0.1 is for a plan that is made here, but one is given; leave out one of both"
    assert much == "recompute is 1.5; it must be from 0 (no row twice) to 1 (twice the work)"
    assert plan == (
        "the plan of Decoder computes rows twice, which is of inference; give mode='inference', or plan"
        " without recompute"
    )
    assert "the plan has margins of rows for another network" in other
    assert other.endswith("plan this model")


@pytest.mark.slow
def test_lower_precision_is_that_of_one_process(ranks: RankPool) -> None:
    assert all(0.5 < each < 1.5 for each in ranks.call("low_precision"))
