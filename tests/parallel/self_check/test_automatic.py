"""`parallelize` compares on the first rank before it sends anything, and tells all ranks what was found."""

from __future__ import annotations

import re

import pytest
from rank_pool import RankPool, pool_of

import synth
from synth.parallel.self_check.automatic import when_to_check

pytestmark = pytest.mark.ranks
LINE = (
    r"synth: Drops is as in one process in 2 calls, in training and evaluation, for an input of"
    r" \(2, 4, 16, 12\) in float64, compared in \d+\.\d s\n"
)


ranks = pool_of(__file__, "automatic_check_ranks.py", 4)


@pytest.mark.parametrize("check", ["auto", True])
@pytest.mark.one_in(2)
def test_the_first_rank_compares_and_says_so(check: bool | str, ranks: RankPool) -> None:
    found = ranks.call("planned", check)
    assert [each["compared"] for each in found] == [2, 0, 0, 0]
    assert re.fullmatch(LINE, found[0]["printed"])
    assert not any(each["printed"] for each in found[1:])
    assert len({each["sum"] for each in found}) == 1
    without = ranks.call("planned", False)
    assert [each["generator"] for each in found] == [each["generator"] for each in without]


def test_a_difference_is_refused_on_all_ranks(ranks: RankPool) -> None:
    """It is seen on rank 0 alone. Nothing was sent, so that the ranks go on together."""
    found = ranks.call("planned", "auto", None, True)
    assert all("error" in each for each in found), found
    assert len({each["error"] for each in found}) == 1
    start = r"CheckError: drop \(automatic_check_ranks\.py:\d+\) gives something else on ranks than in"
    assert re.match(rf"{start} one process, in training: ", found[0]["error"])
    assert all(each["ranks"] == 4 for each in found)
    assert "sum" in ranks.call("planned", False, None, True)[0]


@pytest.mark.parametrize(
    ("check", "said", "times"),
    [(False, None, 0), (True, "never", 0), (False, "always", 2), (False, "auto", 2)],
)
def test_the_environment_goes_before(check: bool, said: str | None, times: int, ranks: RankPool) -> None:
    found = ranks.call("planned", check, said)
    assert found[0]["compared"] == times
    assert bool(found[0]["printed"]) == bool(times)
    assert all("sum" in each for each in found)


def test_inference_is_compared_in_evaluation(ranks: RankPool) -> None:
    (line, *_) = (each["printed"] for each in ranks.call("inference"))
    assert "in evaluation, for" in line


def test_a_model_that_sends_messages_is_left_alone(ranks: RankPool) -> None:
    found = ranks.call("planned", "auto", None, False, True)
    assert "it exchanges messages with other ranks by itself" in found[0]["printed"]
    assert all("sum" in each for each in found)


def test_what_check_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNTH_CHECK", raising=False)
    with pytest.raises(synth.UsageError, match='check is 1; it must be True, False or "auto"'):
        when_to_check(1)  # type: ignore[arg-type]
    monkeypatch.setenv("SYNTH_CHECK", "sometimes")
    with pytest.raises(synth.UsageError, match="SYNTH_CHECK is 'sometimes'; it must be never, auto, always"):
        when_to_check("auto")
