"""What many ranks tell each other goes along trees: the same outcomes on a few ranks that do so, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool, RankPools

pytestmark = pytest.mark.ranks
MODULE = Path(__file__).with_name("tree_ranks.py")


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(MODULE, tmp_path_factory.mktemp("ranks")) as pools:
        yield pools


@pytest.fixture(scope="module")
def four(pools: RankPools) -> RankPool:
    return pools(4)


@pytest.mark.parametrize("size", [1, 10_000])
def test_values_are_combined_on_all_ranks(size: int, pools: RankPools) -> None:
    assert pools(6).call("sums", size) == [(15, 6 * size, "at most 5")] * 6


def test_what_some_ranks_refuse_all_do(four: RankPool) -> None:
    refusing = [[], [0], [2], [1, 3], [0, 1, 2, 3], []]
    told = four.call("ended_together", refusing)
    assert all(each == told[0] for each in told)
    for ranks, said in zip(refusing, told[0], strict=True):
        assert any(f"a call refuses the words of rank {n} (word {n})" in said for n in ranks) or not ranks
        assert (said == "taken") == (not ranks)


@pytest.mark.parametrize("differs", [True, False])
@pytest.mark.one_in(2)
@pytest.mark.slow
def test_what_is_given_is_compared(differs: bool, four: RankPool) -> None:
    told = four.call("outcomes", {"h": 2, "k": 2}, differs)
    assert all(each == told[0] for each in told)
    assert told[0].pop("afterwards") == "right"
    for name, sentence in told[0].items():
        assert ("rank 3 was given " in sentence) if differs else sentence == "nothing", (name, sentence)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "width",
            "ValueError: rank 2 has another model than rank 0: module 0 is Conv2d(4, 6, kernel_size=(5",
        ),
        ("plan", "ValueError: rank 2 has another plan than rank 0: it is n: 4, there it is h: 4"),
        ("tracing", "ValueError: rank 2 cannot make the network, other ranks can: "),
        ("all fail", "UsageError: plan names the layer nothing, which the model does not have"),
        ("", ""),
    ],
)
def test_models_are_compared(what: str, text: str, four: RankPool, tmp_path: Path) -> None:
    told = four.call("said", what, str(tmp_path), seconds=60)
    assert len(set(told)) == 1
    assert told[0].startswith(text)


@pytest.mark.parametrize(
    ("what", "text"), [("bias", "0.bias has other words on rank 2 than on rank 1"), ("", "")]
)
def test_copies_are_compared(what: str, text: str, four: RankPool) -> None:
    told = four.call("replicas", what, seconds=60)
    assert len(set(told)) == 1
    assert told[0].startswith(text)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("parameters", "RuntimeError: forward pass 2 with 10 trained parameters: rank 2 has other"),
        ("frozen", r"RuntimeError: rank 0 is at forward pass 2 with 10 trained parameters.*, but rank 2 at "),
        ("drawn", r"RuntimeError: the ranks would draw other words of \(8, 3, 3, 3\), because"),
        ("evaluation", ""),
    ],
)
@pytest.mark.one_in(2)
def test_replicas_agree(what: str, text: str, four: RankPool) -> None:
    told = four.call("refused", what, seconds=60)
    assert len(set(told)) == 1, told
    assert re.match(text, told[0]) if text else not told[0], told


def test_dropout_is_drawn_from_the_first_rank(four: RankPool) -> None:
    first, again, other, last = four.call("dropped")
    assert (first, other) == (again, last)
    assert first != other
