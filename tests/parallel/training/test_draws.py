"""A pass repeats its random numbers behind torch.manual_seed and set_rng_state, on every grid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPools

pytestmark = pytest.mark.ranks
CUTS = [(2, {"b": 2}), (2, {"k": 2}), (4, {"h": 2, "k": 2})]


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(Path(__file__).with_name("draw_ranks.py"), tmp_path_factory.mktemp("ranks")) as pools:
        yield pools


@pytest.mark.slow
def test_passes_repeat_on_every_grid(pools: RankPools) -> None:
    first = None
    for procs, plan in CUTS:
        for found in pools(procs).call("passes", plan):
            first = first or found
            for name, values in found.items():
                torch.testing.assert_close(values, first[name], rtol=0, atol=1e-10)
    assert first is not None
    same = [
        ("seeded", "seeded again"),
        ("seeded", "seeded in fork_rng"),
        ("next", "next again"),
        ("behind a state", "behind the state again"),
    ]
    for one, other in same:
        torch.testing.assert_close(first[one], first[other], rtol=0, atol=1e-10)
    others = [first[name] for name in ("seeded", "next", "behind a state", "another seed")]
    for place, one in enumerate(others):
        for other in others[:place]:
            assert not torch.allclose(one, other)


@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
@pytest.mark.one_in(2)
def test_a_checkpoint_draws_the_same_again(procs: int, plan: Any, pools: RankPools) -> None:
    assert max(pools(procs).call("gradients", plan)) < 1e-10


@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
def test_ranks_with_other_generators_draw_from_the_first(procs: int, plan: Any, pools: RankPools) -> None:
    (told, apart), *others = pools(procs).call("other_generators", plan)
    assert apart < 1e-10
    assert others == [([], apart)] * (procs - 1)
    assert len(told) == 1
    assert told[0].startswith(
        "the generators of the ranks differ: all ranks draw dropout from that of rank 0"
    )


@pytest.mark.parametrize(("procs", "plan"), CUTS, ids=str)
def test_where_nothing_draws_the_generator_stays(procs: int, plan: Any, pools: RankPools) -> None:
    assert pools(procs).call("untouched", plan) == [[True, False, True]] * procs


def test_several_calls_that_every_rank_computes_whole_in_one_mode(pools: RankPools) -> None:
    """The first rank alone failed, as it counted the words of what it warns of."""
    first, *others = pools(2).call("several_whole", {"b": 2})
    assert first != 0
    assert others == [first]


@pytest.mark.parametrize(("procs", "plan"), [(2, {"h": 2}), (3, {"k": 3})], ids=str)
@pytest.mark.one_in(2)
def test_calls_draw_from_generators_of_the_user(procs: int, plan: Any, pools: RankPools) -> None:
    """They drew from a copy that had given numbers while the model was traced."""
    for found in pools(procs).call("given_generators", plan):
        assert max(found.values()) < 1e-12, found


def test_generators_that_a_pass_cannot_follow_are_refused(pools: RankPools) -> None:
    for said in pools(2).call("refused_generators", {"h": 2}):
        assert said == {
            "made": "forward draws from a torch.Generator that is no argument and no attribute of a module,"
            " so the ranks cannot follow it; give it to forward, or set it on the module",
            "seeded": "forward sets the state of the generator own, which the ranks would not do; seed it"
            " before the call",
            "checkpoint": "forward draws from the generator own inside of torch.utils.checkpoint, which would"
            " draw other numbers when it computes again; draw outside of it",
            "differs": "rank 1 was given another state of a generator",
            "later": "right",
        }
