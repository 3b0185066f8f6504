"""Networks on some of four real ranks: as in one process, with the planned words, several in one job."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "subgroup_ranks.py", 4)


def test_two_models_on_two_pairs_of_ranks(ranks: RankPool) -> None:
    assert ranks.call("two_models") == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize("case", ["residual h", "cosmo d", "odd"])
@pytest.mark.one_in(2)
def test_some_ranks_train_alone(case: str, ranks: RankPool) -> None:
    assert ranks.call("some_ranks", case, 1, 3) == [[], [1, 3], [], [1, 3]]


def test_layers_train_on_some_ranks(ranks: RankPool) -> None:
    found = ranks.call("zoo_models")
    assert [len(each) for each in found] == [0, 5, 0, 5]
    for rank in (1, 3):
        for name, measured in found[rank].items():
            assert measured["error"] < 2e-4, name
            assert measured["words"] > 0, name


def test_rows_and_columns_of_a_mesh(ranks: RankPool) -> None:
    assert ranks.call("sub_meshes") == [
        [[0, 1], [0, 2]], [[0, 1], [1, 3]], [[2, 3], [0, 2]], [[2, 3], [1, 3]],
    ]  # fmt: skip


def test_overlapping_ranks_one_after_the_other(ranks: RankPool) -> None:
    assert ranks.call("overlapping") == [1, 2, 2, 1]


def test_ranks_that_cannot_run_it_are_told(ranks: RankPool) -> None:
    for rank, said in enumerate(ranks.call("refused")):
        assert said[:2] == [
            "the model is asked for 3 ranks, but 4 run; start as many, or give a group or a mesh",
            "procs is a mesh of 3 dimensions; give one (the ranks of the network) or two (replicas, and the"
            ' ranks of each), such as mesh["b", "c"]',
        ]
        outside = [
            f"rank {rank} is no member of the {what}; only members may make and call a network on it"
            for what in ("group", "mesh with the ranks [0, 1]")
        ]
        assert said[2:] == (outside if rank > 1 else [])


def test_dropout_is_that_of_one_rank(ranks: RankPool) -> None:
    _, one, *two = ranks.call("same_everywhere")
    assert 0 < one[0] < 1
    assert two == [pytest.approx(one)] * 2


def test_a_rank_is_named_by_its_number_in_the_job(ranks: RankPool) -> None:
    one, said, other, again = ranks.call("not_finite")
    assert one == other == ""
    assert said == again
    assert " is not finite on rank 3" in said
    assert "rank 1" not in said


def test_a_file_is_read_once_by_its_ranks(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.call("fed", str(tmp_path)) == [None] * 4


def test_a_collected_network_leaves_nothing(ranks: RankPool) -> None:
    for faults, states, threads in ranks.call("collected"):
        assert faults == []
        assert states == ["gone"] * 4  # the last one removes the heartbeats of all
        assert threads == []


@pytest.mark.slow
def test_networks_take_over_the_groups_of_collected_ones(ranks: RankPool) -> None:
    for counts in ranks.call("groups_of_torch"):
        assert counts[0] == counts[1] == counts[2]
        assert counts[2] < counts[3] == counts[4]  # what one rank still holds is not taken by any
