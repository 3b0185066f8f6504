"""Plans of whole networks on real ranks: words between and in layers as planned, values as torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "plan_ranks.py", 4)


@pytest.mark.parametrize(
    ("model", "axes", "source"),
    [
        ("residual", "", "none"),
        ("cosmo", "", "file"),
        ("cosmo", "dh", "object"),
        ("odd", "", "object"),
        ("decoder", "", "file"),
        ("decoder_by_channels", "", "object"),
    ],
)
@pytest.mark.one_in(6)
def test_words_and_values_as_planned(
    model: str, axes: str, source: str, ranks: RankPool, tmp_path: Path
) -> None:
    """Ten steps give torch's values; one more receives the planned words, by layer and by edge."""
    for difference in ranks.call("trained_as_planned", model, axes, source, str(tmp_path)):
        assert difference < 1e-9


@pytest.mark.slow
def test_plans_of_something_else_are_refused(ranks: RankPool) -> None:
    for other_procs, other_model, other_batch, too_little_memory in ranks.call("refusals_of_other_plans"):
        assert "the plan of Residual is for 3 processes, but 4 ranks run; start as many" in other_procs
        assert "the plan of Cosmo has no layer stem, which the model has; plan this model" in other_model
        assert (
            "the plan of Residual cuts stem as b=4, but N_b is 2; plan this model, with this input"
            in other_batch
        )
        assert "plans that were tried fits 4000 bytes per process; memory=" in too_little_memory


@pytest.mark.parametrize("plan", ["rows_channels", "data"])
@pytest.mark.one_in(2)
def test_buckets_save_messages_and_no_words(plan: str, ranks: RankPool) -> None:
    """In three backward passes: a message per tensor without buckets, and one per group with large ones."""
    for found in ranks.call("gradients_in_buckets", plan):
        no_buckets, small, large = found["messages"]
        assert no_buckets > small > large > 0
        assert no_buckets == 3 * found["shared"]
        assert large == 3 * found["groups"]
        assert len(set(found["words"])) == 1


def test_a_failed_backward_pass_leaves_nothing(ranks: RankPool) -> None:
    for differences in ranks.call("gradients_after_a_failed_backward_pass", "residual"):
        assert len(differences) > 5
        assert max(differences.values()) < 1e-5  # float32
