"""What a user changes after `parallelize` is effective in the next pass, or refused by name."""

from __future__ import annotations

import pytest
from live_changes import CHANGES, SENTENCES
from live_ranks import PLANS
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


two = pool_of(__file__, "live_ranks.py", 2)


def plan_of(name: str, names: list[str]) -> str:
    """Plans by turns."""
    return [*PLANS][names.index(name) % len(PLANS)]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.one_in(40)
def test_a_change_is_effective(two: RankPool, name: str) -> None:
    for error, anew in two.call("changed", name, plan_of(name, [*CHANGES])):
        assert error < 1e-8
        assert anew == CHANGES[name].anew


@pytest.mark.parametrize("name", SENTENCES)
@pytest.mark.one_in(12)
def test_a_change_is_refused_until_it_is_taken_back(two: RankPool, name: str) -> None:
    for said, error in two.call("refused", name, plan_of(name, [*SENTENCES])):
        assert SENTENCES[name] in said
        assert error < 1e-8


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.one_in(4)
def test_an_optimizer_trains_the_parameters_that_it_was_given(two: RankPool, plan: str) -> None:
    assert max(two.call("learned", plan)) < 1e-8


def test_other_shapes_are_those_of_the_changed_model(two: RankPool) -> None:
    assert max(two.call("other_shapes", "rows")) < 1e-8


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.one_in(2)
def test_statistics_of_an_averaged_model_are_those_of_one_process(two: RankPool, plan: str) -> None:
    assert max(two.call("averaged", plan)) < 1e-8


def test_copies_are_changed_apart(two: RankPool) -> None:
    assert max(max(errors) for errors in two.call("copies", "rows")) < 1e-8


def test_a_change_on_one_rank_is_refused(two: RankPool) -> None:
    for said, error in two.call("on_one_rank", "filters"):
        assert [each.partition(" (")[0] for each in said] == ["rank 0 is at a pass after changes"] * 3
        named = "act.negative_slope is 0.5", "head.stride is (2, 2)", "bn was put into evaluation"
        for each, text in zip(named, said, strict=True):
            assert f"({each}" in text
        assert all(each.endswith(": make the same changes on every rank") for each in said)
        assert error < 1e-8


def test_a_change_of_the_model_that_was_given_is_refused(two: RankPool) -> None:
    for said, error in two.call("originals", "rows"):
        starts = "head was replaced", "act.negative_slope is 0.5", "blocks.0.scale is 2.0"
        starts = "", "", *starts, "the model was put into evaluation", "", ""
        assert all(
            text.startswith(each) and bool(text) == bool(each)
            for each, text in zip(starts, said, strict=True)
        )
        assert all("on the model that was given to parallelize" in text for text in said if text)
        assert error < 1e-8


@pytest.mark.parametrize("plan", ["rows", "filters"])
@pytest.mark.one_in(2)
def test_values_of_the_model_that_was_given_are_not_ignored(plan: str, two: RankPool) -> None:
    found = two.call("values_of_original", plan)
    for said, error in found:
        assert [bool(each) for each in said] == [True, False, True, False, True, False, True, False]
        for text, name in zip(said[0:6:2], ("conv.weight", "head.weight", "conv.weight"), strict=True):
            assert text.startswith(f"{name} was changed on the model that was given to parallelize, but not")
            assert "net.load_full_state_dict(model.state_dict())" in text
        assert "make the same changes on every rank" in said[6]
        assert error < 1e-8
    assert found[0][0] == found[1][0]


def test_an_optimizer_of_the_model_that_was_given_is_refused(two: RankPool) -> None:
    for said in two.call("optimizers_of_original", "rows"):
        own = {"a term of the network", "clipped, of the network", "clipped, trained by itself"}
        own |= {"values clipped, of the network"}
        right = own | {"of the network", "of a model that is trained by itself", "a second network"}
        assert {name for name, text in said.items() if not text} == right
        assert all(
            " parameters of the model that was given to parallelize (" in text
            for text in said.values()
            if text
        )
        assert said["before"].startswith("Adam has parameters")
        assert "(head.weight and 1 more)" in said["a part"]
        assert said["clipped"].endswith("those of its network have; give it net.parameters()")
        assert said["values clipped"].startswith("clip_grad_value_ has parameters of the model")
        assert said["a term"].startswith("the loss of the network reads parameters of the model")
        assert said["after"].endswith("make it of the network, SGD(net.parameters(), ...)")


def test_the_model_that_was_given_is_not_kept(two: RankPool) -> None:
    assert all(two.call("forgotten"))


def test_no_probability_is_refused(two: RankPool) -> None:
    for said in two.call("no_probability"):
        assert said == "dropout has p = 1.5, which is no probability; give 0 to 1"


def test_what_nobody_reads_costs_no_plan(two: RankPool) -> None:
    assert all(two.call("unnoticed"))
