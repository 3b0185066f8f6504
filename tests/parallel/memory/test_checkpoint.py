"""Checkpoints inside a model, on four real ranks: gradients as in one process, and less memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rank_pool import RankPool, pool_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import synth

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "checkpoint_ranks.py", 4)


@pytest.mark.parametrize("how", ["each", "nested", "sequential", "outputs"])
@pytest.mark.one_in(4)
def test_it_trains_as_one_process_that_checkpoints(how: str, ranks: RankPool) -> None:
    for measured in ranks.call("trains", how, None):
        assert measured["error"] < 2e-4
        assert measured["words"] > 0


@pytest.mark.parametrize("plan", ["spatial", "channel"])
@pytest.mark.one_in(2)
def test_every_plan_computes_a_region_again(plan: str, ranks: RankPool) -> None:
    for measured in ranks.call("trains", "each", plan):
        assert measured["error"] < 2e-4


class Beside(nn.Module):
    """A region, and calls that read what it reads."""

    def __init__(
        self, join: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor], again: bool
    ) -> None:
        super().__init__()
        self.conv, self.block = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()),
        )
        self.join, self.again = join, again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return self.join(self.conv, x, inner)


@pytest.mark.parametrize(
    "join",
    [
        lambda conv, x, inner: x + inner,
        lambda conv, x, inner: conv(x) + inner,
        lambda conv, x, inner: conv(conv(x) + inner),
        lambda conv, x, inner: conv(x),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_memory_of_what_a_region_and_later_calls_read(
    join: Callable[..., torch.Tensor], before: bool
) -> None:
    """A value that a region reads lives until its last reader, behind the region."""
    most = []
    for again in (True, False):
        model = Beside(join, again)
        whole = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), model) if before else model
        most.append(synth.plan_model(whole, (2, 4, 8, 8), procs=4).memory.most)
    assert 0 < most[0] <= most[1] + 2 * 4 * 8 * 8 // 4  # what the region reads is held for it


FORMS = "one", "instances", "two", "beside", "before", "behind", "three", "deep", "closure", "detached"


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("form", [*FORMS, "spectral"])
@pytest.mark.one_in(4)
def test_nested_regions_change_buffers_as_often_as_torch(form: str, early: bool, ranks: RankPool) -> None:
    """torch does not compute again what stands behind the last tensor that is saved."""
    for difference, counted, expected in ranks.call("nested", form, early, None, None):
        assert counted == expected
        assert difference < 1e-8


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("around", [True, False])
@pytest.mark.one_in(2)
def test_early_stop_around_the_steps_counts(early: bool, around: bool, ranks: RankPool) -> None:
    for difference, counted, expected in ranks.call("nested", "two", early, "channel", around):
        assert counted == expected
        assert difference < 1e-8


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.one_in(2)
def test_a_users_checkpoint_around_a_pass_stops_as_in_one_process(
    adds: bool, behind: bool, ranks: RankPool
) -> None:
    for counted, expected in ranks.call("inside_of_users", adds, behind):
        assert counted == expected == [6 if behind else 4]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.one_in(3)
def test_layers_that_are_trained_later_are_computed_again(form: str, ranks: RankPool) -> None:
    for counted, expected in ranks.call("nested_trained_later", form):
        assert counted == expected


@pytest.mark.parametrize("how", ["each", "nested"])
@pytest.mark.one_in(2)
def test_a_rank_that_owns_nothing_of_a_region_computes_it_again(how: str, ranks: RankPool) -> None:
    for measured in ranks.call("idle", how):
        assert measured["error"] < 2e-4


@pytest.mark.slow
def test_a_region_drops_the_same_words_again(ranks: RankPool) -> None:
    for found in ranks.call("compared", "each", None, 0.5):
        assert found["apart"] == 0.0


@pytest.mark.slow
def test_a_region_is_not_kept_and_its_words_move_again(ranks: RankPool) -> None:
    for found in ranks.call("compared", "each", "spatial", 0.0):
        with_, without = found["checkpoints"], found["none"]
        assert found["apart"] == 0.0
        assert with_["peak"] < 0.67 * without["peak"]  # 0.643; 0.663 where a message ends later
        assert with_["forward"] == without["forward"]
        again = with_["both"] - without["both"]
        assert 0.5 * with_["forward"] < again < with_["forward"]  # all but the first and the last layer


@pytest.mark.parametrize("how", ["each axes h", "nested axes h", "each axes ck", "sequential axes "])
@pytest.mark.one_in(6)
def test_the_words_that_move_again_are_planned(how: str, ranks: RankPool) -> None:
    results = ranks.call("words", *how.split(" axes "))
    (planned,) = {planned for _, planned, *_ in results}
    assert max(counted for counted, *_ in results) == planned > 0
    for *_, counted, planned in results:
        assert counted == planned


@pytest.mark.slow
def test_the_mode_decides_whether_a_model_checkpoints(ranks: RankPool) -> None:
    assert max(ranks.call("evaluated")) < 0.7
