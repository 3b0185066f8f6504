"""Buffers that `forward` updates by what it computes have the words of one process."""

from __future__ import annotations

import re

import pytest
from buffer_update_ranks import FORMS, MODELS
from rank_pool import RankPool, pool_of

ranks = pool_of(__file__, "buffer_update_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", [*FORMS, *MODELS])
def test_they_are_those_of_one_process(name: str, ranks: RankPool) -> None:
    for plan in (None, "spatial"):
        for found in ranks.call("passes", name, plan):
            assert max(found["error"], found["gradient"], found["state"]) < 1e-10
            assert all(counted == planned for counted, planned in found["words"])
            assert found["draws"] == {(False, False)}


@pytest.mark.ranks
def test_an_update_is_not_reported_as_a_gathered_call(ranks: RankPool) -> None:
    ranks.said()
    ranks.call("passes", "replaced", "spatial")
    assert "gathered" not in ranks.said()


@pytest.mark.ranks
def test_others_are_refused(ranks: RankPool) -> None:
    found = ranks.call("refused")
    assert all(each == found[0] for each in found)
    said = found[0]
    assert "keep the graph of every pass; detach them" in said["graph"]
    assert "in the place of mean, which has (8,) and torch.float32" in said["dtype"]
    assert "in a checkpoint, which runs twice" in said["checkpoint"]
    assert "give the whole buffer its new values, as by copy_" in said["part"]
    assert "replica" in said["replicas"]
    assert re.search(
        r"registers the buffer seen \(.*:\d+\).* in __init__, or let forward assign", said["new"]
    )
    assert "in the place of mean" in said["constant"]
    assert "does not depend on the input" in said["constant"]
    assert "as a parameter; make parameters in __init__" in said["parameter"]
