"""What users call on the output of a network, on four real ranks: as in one process, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from output_operations import REFUSED
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "output_operation_ranks.py", 4)


@pytest.mark.parametrize("plan", [{"h": 2, "k": 2}, {"b": 2, "w": 2}], ids=str)
@pytest.mark.one_in(2)
def test_operations_are_those_of_one_process(plan: Any, ranks: RankPool) -> None:
    assert ranks.call("errors", plan) == [{}] * 4


def test_a_change_that_would_be_lost_is_refused_on_all_ranks(ranks: RankPool) -> None:
    for found in ranks.call("sentences", {"h": 2, "k": 2}):
        for name, (_, expected) in REFUSED.items():
            assert expected in found[name], name


def test_one_warning_names_operation_words_and_line(ranks: RankPool) -> None:
    first, *others = ranks.call("told", "along: qr")
    assert others == [[]] * 3
    assert len(first) == 1, first
    assert "linalg_qr has no rule for parts of a tensor: 1536 words are gathered" in first[0]
    assert "(output_operations.py:" in first[0]


def test_a_network_that_refuses_to_gather_names_the_line(ranks: RankPool) -> None:
    for said in ranks.call("refused", "along: qr"):
        assert "linalg_qr has no rule for parts of a tensor (output_operations.py:" in said
        assert "refuse=True; call full_tensor() first" in said


def test_an_operation_of_one_rank_alone_waits_for_nobody(ranks: RankPool) -> None:
    found, *others = ranks.call("alone", {"h": 2, "k": 2})
    assert all(each == found for each in others)
    said = {name: text for name, text in found.items() if text != "nothing"}
    assert len(said) > 40, "most operations exchange words or are given some"
    for name, text in said.items():
        assert "rank 0 " in text, (name, text)
        assert "(output_operation" in text, (name, text)


@pytest.mark.parametrize("name", ["every third row", "diagonal", "joined along rows"])
def test_a_network_that_refuses_to_gather_moves_what_is_read(name: str, ranks: RankPool) -> None:
    assert ranks.call("refused", f"shape: {name}") == ["nothing"] * 4
