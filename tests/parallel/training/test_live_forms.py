"""Changes after `parallelize` under every form of network: effective in the next pass, or refused by name."""

from __future__ import annotations

import pytest
from live_changes import CHANGES
from live_form_ranks import FORMS, OF_GIVEN
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks
QUICK = "bn.momentum = 0.9", "a head of other classes", "weights are tied"
SHAPES = (
    "conv.stride = (2, 2)",
    "tail.0.padding = (1, 1)",
    "a head of other classes",
    "a weight of more filters",
)


two = pool_of(__file__, "live_form_ranks.py", 2)


def refusal(form: str, name: str) -> str:
    """A part of the sentence with which a change is refused under a form of network; "" where it is not."""
    if form == "compiled" and name in SHAPES:  # in one pass, by which the network is planned anew
        return "code was compiled for (4, 5, 8, 6) of torch.float64, which it gave before it was changed"
    if form in ("inference", "recompute") and name == "update_bn":
        return "mode='inference'"
    return ""


CASES = [
    pytest.param(form, name, marks=[pytest.mark.slow] * (name not in QUICK), id=f"{form}-{name}")
    for form in FORMS
    for name in CHANGES
]


@pytest.mark.parametrize(("form", "name"), CASES)
@pytest.mark.one_in(16)
def test_a_change_of_a_network(form: str, name: str, two: RankPool) -> None:
    for error, said in two.call("changed", form, name):
        assert error < 1e-8, said
        if form == "plan" and said:  # of layers that the plan that was given has not, or not so
            assert "plan" in said
            continue
        assert refusal(form, name) in said
        assert bool(said) == bool(refusal(form, name)), said


@pytest.mark.parametrize(
    "form", [pytest.param(each, marks=[pytest.mark.slow] * (each == "recompute")) for each in FORMS]
)
@pytest.mark.one_in(4)
def test_a_change_of_the_given_model(form: str, two: RankPool) -> None:
    for said, error in two.call("of_given", form):
        for name, (_, part) in OF_GIVEN.items():
            assert part in said[name], f"{name}: {said[name]}"
            assert "on the model that was given to parallelize" in said[name], f"{name}: {said[name]}"
        assert error < 1e-8
