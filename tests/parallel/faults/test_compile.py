"""torch.compile around a network compiles what is around it, and a compiled model is read as the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import compile_ranks
import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "compile_ranks.py", 2)


def first(names: Iterable[str], quick: int) -> list[Any]:
    """Some names run always, the others with --slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] * (at >= quick)) for at, n in enumerate(names)]


@pytest.mark.parametrize("loss", first(compile_ranks.LOSSES, 2))
@pytest.mark.one_in(2)
def test_a_compiled_module_around_a_network(loss: str, ranks: RankPool) -> None:
    for far, gradients, breaks in ranks.call("around", loss):
        assert far < 1e-5
        assert gradients < 1e-5
        assert 1 <= breaks <= 6  # at the network, and at operations on its output


@pytest.mark.parametrize("how", ["model", "model in place", "network", "network in place"])
@pytest.mark.one_in(2)
def test_compiled_models_and_networks(how: str, ranks: RankPool) -> None:
    for far, gradients, breaks in ranks.call("network", how):
        assert far < 1e-5
        assert gradients < 1e-5
        assert breaks <= 1


@pytest.mark.parametrize("name", first(["AdamW", "SGD", "Adagrad"], 1))
def test_compiled_steps_of_optimizers(name: str, ranks: RankPool) -> None:
    assert max(ranks.call("optimizer", name)) < 1e-5


def test_a_full_graph_is_refused_with_what_to_do(ranks: RankPool) -> None:
    for said, far in ranks.call("full_graph"):
        assert "exchanges words between ranks" in said
        assert "compile without fullgraph=True" in said
        assert far < 1e-5


def test_plans_and_checks_of_a_compiled_model(ranks: RankPool) -> None:
    assert all(ranks.call("planned"))


@pytest.mark.parametrize("kind", first(["list", "dict", "tuple"], 1))
def test_networks_with_whole_outputs_are_operators_of_one_graph(kind: str, ranks: RankPool) -> None:
    for found in ranks.call("one_operator", kind):
        assert found.pop("breaks") == 0
        assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.one_in(2)
def test_what_a_loss_in_the_graph_does_not_reach(several: bool, ranks: RankPool) -> None:
    for names, far in ranks.call("unused", several):
        assert {name.partition(".")[0] for name in names} == {"two", "body"}
        assert far < 1e-5


@pytest.mark.slow
def test_an_operator_in_a_graph_of_inductor(ranks: RankPool) -> None:
    for found in ranks.call("one_operator", "tuple", "inductor"):
        assert found.pop("breaks") == 0
        assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("another shape", "no plan for a batch of .* yet; call the network once with this shape before"),
        ("autocast", "was not called under autocast to torch.bfloat16 yet; call the network once under it"),
        ("a second backward pass", "the backward pass of a compiled network ran already"),
        ("a shape that was called before", "accepted"),
    ],
)
@pytest.mark.one_in(2)
def test_what_one_operator_cannot_do(what: str, sentence: str, ranks: RankPool) -> None:
    for said in ranks.call("whole_but", what):
        assert re.search(sentence, said), said


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_values_of_a_call_in_a_full_graph(gain: float, ranks: RankPool) -> None:
    for found in ranks.call("by_values", gain):
        assert max(found["all"], found["named"]) < 1e-5, found
        alone = found["alone"]
        assert alone < 1e-5 if gain == 1 else "the values and in the mode of its plan" in alone, found
        for name in ("another", "a flag", "a tensor", "too many", "in training"):
            assert "the values and in the mode of its plan" in found[name], found
        assert "code was compiled for a network in another mode" in found["a part in training"], found
