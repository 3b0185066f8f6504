"""A call with other constants, other tensors or in another mode than before is planned, too."""

from __future__ import annotations

import re

import pytest
import torch
from other_calls_ranks import CALLS
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


two = pool_of(__file__, "other_calls_ranks.py", 2)


@pytest.mark.parametrize(
    ("plan", "training"),
    [({"h": 2}, True), pytest.param({"k": 2}, False, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.one_in(8)
def test_another_call_is_that_of_one_process(
    name: str, plan: dict[str, int], training: bool, two: RankPool
) -> None:
    assert max(two.call("called", name, plan, training)) < 1e-9


@pytest.mark.parametrize("again", [False, True])
def test_ranks_that_give_other_constants_are_told_apart(again: bool, two: RankPool) -> None:
    for said, error in two.call("apart", again):
        for text, word in zip(said, ("forward", "encode"), strict=True):
            assert re.search(r"call \d with flag=" if again else rf"the first call of {word}\(\)", text), text
        assert error < 1e-9


def test_the_oldest_call_goes(two: RankPool) -> None:
    for words, graphs, error in two.call("many"):
        assert words > 0
        assert graphs == 8
        assert error < 1e-9


def test_what_stays_refused(two: RankPool) -> None:
    for said in two.call("refused"):
        assert re.match("(ValueError|UsageError|InputError): .*plan", said[0]), said[0]
        assert said[1].startswith("ValueError: scale is <object object>, but"), said[1]
        assert "unexpected keyword argument 'flags'" in said[2]
        assert said[3].startswith("ValueError: x is None, but the network is planned for a tensor"), said[3]


def test_the_first_call_of_a_method_is_compared(two: RankPool) -> None:
    first, other = two.call("compared", False)
    assert re.match(
        r"synth: Model.encode is as in one process in 3 calls, in training and evaluation, for an input of"
        r" \(.*, flag=True\) in float64, compared in \d+\.\d s\n",
        first["printed"],
    )
    assert first["printed"].count("as in one process") == 2
    assert not first["said"]
    assert not other["printed"]


def test_a_method_that_differs_is_refused_on_all_ranks(two: RankPool) -> None:
    found = two.call("compared", True)
    assert len({each["said"] for each in found}) == 1
    assert re.match(r"drop \(other_calls_ranks\.py:\d+\) gives something else on ranks", found[0]["said"])


@pytest.mark.parametrize("how", ["bytes", "numbers", "least", "back"])
def test_a_batch_of_another_dtype_is_another_call_where_forward_reads_it(how: str, two: RankPool) -> None:
    """What was traced for the dtype of the parameters was computed of it."""
    for found in two.call("of_dtypes", how):
        for kind, same, far in found:
            least = 0.02 if kind in (torch.bfloat16, torch.uint8) and how == "back" else 1e-5
            assert same, kind
            assert far <= least, kind
