"""Words of whole passes are planned: group norms, attention, what is cut anew, gathered calls and all."""

from __future__ import annotations

from typing import Any

import planned_words_ranks
import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "planned_words_ranks.py", 4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("group norms", ("hw",)),
        ("group norms", ("ck",)),
        ("instance norms", ("",)),
        ("batch norms", ("h", "local")),
        ("checkpoint", ("k", "global", True)),
        ("residual", ("hk",)),
        ("heads", ("",)),
        ("gates", ("hw",)),
        ("gates", ("",)),
        ("gates", ("ck",)),
        ("spreads", ("hw",)),
        ("spreads", ("ck",)),
        ("windows", ("hw",)),
        ("windows", ("h",)),
        ("twins", ("hk",)),
        ("twins of norms", ("hk",)),
    ],
    ids=str,
)
@pytest.mark.one_in(28)
def test_words_of_a_training_step_are_planned(name: str, options: Any, ranks: RankPool) -> None:
    for found in ranks.call("trained", name, *options):
        assert found["words"][0] == found["words"][1] > 0, str(found)
        assert found["again"] == found["all"]


QUICK = [name for name in planned_words_ranks.INNER if not name.startswith("attention")]
LONG = [pytest.param(name, marks=pytest.mark.slow) for name in planned_words_ranks.INNER if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *LONG])
@pytest.mark.one_in(4)
def test_words_of_every_pass_are_planned(name: str, ranks: RankPool) -> None:
    """With and without gradients of the input, with frozen parts, and in evaluation."""
    for found in ranks.call("every_pass", name):
        assert len(found) == 3 * 8
        assert all(counted == planned for counted, planned in found.values()), found
        assert sum(counted for counted, _ in found.values()) > 0


def test_inputs_without_gradients_get_no_words(ranks: RankPool) -> None:
    for found in ranks.call("without_gradients"):
        assert all(counted == planned for counted, planned in found.values()), found
        assert sum(counted for counted, _ in found.values()) > 0


@pytest.mark.parametrize("name", ["group norms", "residual", "heads"])
@pytest.mark.one_in(2)
def test_words_of_a_forward_pass_are_planned(name: str, ranks: RankPool) -> None:
    for found in ranks.call("inferred", name, "hk"):
        assert found["words"][0] == found["words"][1] > 0, str(found)
        assert found["again"] == found["all"]


@pytest.mark.parametrize(("axes", "mode"), [("hw", "training"), ("bk", "training"), ("hw", "inference")])
@pytest.mark.parametrize(
    ("name", "tensors"), [("gates", 15), ("spreads", 7), ("windows", 19), ("twins", 9), ("twins of norms", 9)]
)
@pytest.mark.one_in(12)
def test_reductions_of_parts_give_what_one_process_gives(
    name: str, tensors: int, axes: str, mode: str, ranks: RankPool
) -> None:
    for found in ranks.call("as_one_process", name, axes, mode):
        assert len(found) == (tensors if mode == "training" else 1)
        assert all(each < 1e-9 for each in found.values()), found


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_plans_for_time_that_cut_input_rows_give_what_one_process_gives(mode: str, ranks: RankPool) -> None:
    for found in ranks.call("timed", mode):
        assert found["words"][0] == found["words"][1] > 0, found
        assert found["difference"] < 1e-12


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.one_in(2)
def test_weights_that_move_for_another_shape_are_planned(mode: str, ranks: RankPool) -> None:
    for found in ranks.call("other_shape", "residual", (1, 3, 24, 6), mode):
        assert found["words"][0] == found["words"][1], str(found)
        assert found["weights"]
