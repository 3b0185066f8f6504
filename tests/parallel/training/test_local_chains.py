"""`parallelize(compile=True)`: steps between two exchanges are one call, with the values of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool

from synth.runtime.model.local_chains import Chains

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    module = Path(__file__).with_name("local_chain_ranks.py")
    with RankPool(module, request.param, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


@pytest.mark.parametrize(("kind", "plan"), [("plain", "spatial"), ("plain", "data"), ("checkpoints", "data")])
def test_values_and_weights_are_those_of_one_process(ranks: RankPool, kind: str, plan: str) -> None:
    """In all modes; with fewer samples than ranks, so that some have no words."""
    for found in ranks.call("trained", kind, plan, 1):
        assert found["error"] < 1e-9
        norms = [names for names in found["inference"] if any("norm" in name for name in names)]
        gates = [names for names in found["training"] if any("silu" in name for name in names)]
        if kind == "plain":
            assert (len(norms), len(gates)) == (1, 1), found
            assert not any("norm" in name for names in found["training"] for name in names)
        else:  # regions that are computed again stay as they are
            assert not gates


def test_changes_between_passes_count(ranks: RankPool) -> None:
    for found in ranks.call("changed"):
        assert max(found.values()) < 1e-9, found


def test_chains_under_autocast_are_as_without_them(ranks: RankPool) -> None:
    for found in ranks.call("under_autocast"):
        assert found["chains"]
        assert found["outputs"] < 0.02
        assert found["gradients"] < 0.02


def test_a_compiler_that_fails_on_one_rank_leaves_all_steps_as_they_are(ranks: RankPool) -> None:
    for found in ranks.call("failing"):
        assert found["error"] < 1e-9
        assert found["chains"] == 0


def test_compiled_graphs_of_all_steps_have_no_chains(ranks: RankPool) -> None:
    assert max(ranks.call("together")) < 1e-9


@pytest.mark.one_in(2)
def test_a_compiler_makes_the_same_choice_on_all_ranks(ranks: RankPool) -> None:
    results = ranks.call("with_a_compiler")
    for found in results:
        assert found["error"] < 1e-9
        assert not any(found["failed"]), found["failed"]
        assert all(one > 0 and other > 0 for one, other in found["seconds"])
        assert found["compiled"] == results[0]["compiled"]


def test_what_is_no_bool_is_refused(ranks: RankPool) -> None:
    assert set(ranks.call("refused")) == {
        "compile is 'reduce-overhead'; give True or False, and options of torch to net.compile()"
    }


class Told:
    """Ranks of which each says how long it took."""

    reports = False

    def __init__(self, others: list[tuple[float, float]]) -> None:
        self.others = others

    def gathered(self, own: Any) -> list[Any]:
        return [own, self.others]


class Measured:
    """A chain that was measured."""

    is_compiled, failed = False, ""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds

    def choose(self, faster: bool) -> None:
        self.is_compiled = faster


def test_the_time_of_all_ranks_together_decides() -> None:
    own = {"a": Measured(1.0, 0.5), "b": Measured(1.0, 0.9), "c": Measured(0.0, 0.0), "d": Measured(3.0, 1.0)}
    chains = Chains(own, ())  # type: ignore[arg-type]
    chains.decide(Told([(1.0, 0.6), (1.0, 1.2), (1.0, 0.9), (0.1, float("inf"))]))  # type: ignore[arg-type]
    assert [each.is_compiled for each in own.values()] == [True, False, True, False]
