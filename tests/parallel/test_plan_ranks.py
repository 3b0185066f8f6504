"""Plans of whole networks on real ranks: words between and in layers as planned, values as torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Outcome, run_ranks

PROGRAM = "from plan_ranks import main\n\nmain()\n"


def told(folder: Path, function: str, argument: str) -> Outcome:
    """Four ranks ran a function of `plan_ranks` to its end."""
    outcome = run_ranks(PROGRAM, 4, folder, function, argument, str(folder))
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    return outcome


@pytest.mark.ranks
@pytest.mark.parametrize("case", ["residual", "cosmo", "odd", "cosmo dh", "decoder", "decoder_by_channels"])
def test_words_and_values_as_planned(case: str, tmp_path: Path) -> None:
    """Ten steps give torch's values; then one step receives the planned words, by layer and by edge."""
    told(tmp_path, "as_planned", case)


@pytest.mark.ranks
def test_plans_of_something_else_are_refused(tmp_path: Path) -> None:
    outcome = told(tmp_path, "wrong_plans", "residual")
    for said in (
        "the plan of Residual is for 3 processes, but 4 ranks run; start as many",
        "the plan of Cosmo has no layer stem, which the model has; plan this model",
        "the plan of Residual cuts stem as b=4, but N_b is 2; plan this model, with this input",
        "next to the",
    ):
        for output in outcome.output:
            assert said in output


@pytest.mark.ranks
@pytest.mark.parametrize("case", ["biases rows_channels", "biases data"])
def test_buckets_save_messages_and_no_words(case: str, tmp_path: Path) -> None:
    """With buckets of 0, 200 and 25 MiB: gradients are those of torch, sums are of as many words."""
    for facts in told(tmp_path, "buckets", case).facts:
        none, some, all_ = facts["messages"]  # of three backward passes
        assert none > some > all_ > 0
        assert (none, all_) == (3 * facts["shared"], 3 * facts["groups"])
        assert len(set(facts["words"])) == 1


@pytest.mark.ranks
def test_a_broken_backward_pass_leaves_nothing(tmp_path: Path) -> None:
    for differences in told(tmp_path, "broken_pass", "residual").facts:
        assert len(differences) > 5
        assert max(differences.values()) < 1e-5
