"""Streams on four real ranks: chunk by chunk as the whole in one process, with the state on the ranks."""

from __future__ import annotations

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "stream_ranks.py", 4)


def test_chunks_are_the_whole_film_and_no_word_of_the_state_moves(ranks: RankPool) -> None:
    for found in ranks.call("streamed", [4, 4, 4], "zeros"):
        assert found["error"] < 1e-12
        assert found["still"] == [True] * 3, "a state lies where the next call takes it"
        assert found["words"] == found["planned"]


def test_the_first_chunk_has_another_length_and_no_state(ranks: RankPool) -> None:
    for found in ranks.call("streamed", [3, 4, 4, 1], "none"):
        assert found["error"] < 1e-12
        assert found["still"] == [True] * 4
        assert found["words"][1:] == found["planned"][1:]


def test_two_streams_at_once(ranks: RankPool) -> None:
    for distances in ranks.call("interleaved"):
        assert max(distances) < 1e-12, distances


def test_memory_does_not_grow_with_the_film(ranks: RankPool) -> None:
    for held in ranks.call("memory"):
        assert len({*held[2:]}) == 1, held


@pytest.mark.parametrize("training", [False, True])
def test_a_state_in_a_dict_with_gradients_through_it(training: bool, ranks: RankPool) -> None:
    for distances in ranks.call("recurrent", training):
        assert max(distances.values()) < 1e-12, distances


def test_words_of_a_plan_without_ranks(ranks: RankPool) -> None:
    assert all(same for each in ranks.call("planned") for same in each)


def test_states_that_do_not_fit_are_refused(ranks: RankPool) -> None:
    """One sentence each, on all ranks; the network then goes on."""
    for said in ranks.call("refused"):
        assert float(said.pop("afterwards")) == 0.0
        differs = said.pop("ranks")
        assert "call that gave cache" in differs, differs
        assert said["network"].startswith("cache.0 is a state that another network gave; give what this one")
        assert said["sessions"].startswith("the tensors of cache are of different calls, [1, 2] of this")
        assert said["order"].startswith("cache.1 is cache.2 of the state that the network gave;")
        assert said["shape"].startswith(
            "cache.0 is a state of (1, 2, 3, 9, 6), but the network is planned for one of (1, 2, 2, 9, 6);"
        )
        assert "cache" in said["size"], said["size"]
        assert said["name"].startswith("state is 'caches', but the arguments of forward are chunk, cache;")
        assert said["nothing"].startswith("state is 'cache', but forward gives nothing beside it;")
        assert said["parts"].startswith("forward takes the state cache.0, cache.1 and gives cache.0 in the")
