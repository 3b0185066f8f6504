"""Methods and attributes of a model work on its network: methods that are given tensors are planned."""

from __future__ import annotations

import re
from pathlib import Path

import methods_ranks
import pytest
import torch
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "methods_ranks.py", 2)


@pytest.mark.parametrize("plan", [{"h": 2}, pytest.param({"k": 2}, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", methods_ranks.CALLS)
@pytest.mark.one_in(8)
def test_methods(name: str, plan: dict[str, int], ranks: RankPool) -> None:
    for distances in ranks.call("distances", name, plan):
        assert max(distances) < 1e-9, distances


@pytest.mark.parametrize("name", ["a dict", "twice in a pass"])
def test_the_first_rank_compares_a_method_that_is_given_what_ranks_hold(name: str, ranks: RankPool) -> None:
    """Which has no words of a tensor in parts: it takes values of its own."""
    for distances in ranks.call("distances", name, {"h": 2}, True):
        assert max(distances) < 1e-9, distances


def test_the_gradient_of_a_batch_is_planned_when_it_is_asked_for(ranks: RankPool) -> None:
    for far, counted, planned in ranks.call("input_gradient"):
        assert far < 1e-9
        assert counted == planned


def test_attributes(ranks: RankPool) -> None:
    for found in ranks.call("attributes"):
        parameters = sum(each.numel() for each in methods_ranks.model().parameters())
        assert found == [{"channels": 6}, 1, torch.float64, "cpu", parameters, 3, True, False, 0.0]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("unknown", "AttributeError: 'Coder' object has no attribute 'nothing'"),
        ("no argument", "TypeError: .*missing 1 required positional argument: 'x'"),
        ("another method", "RuntimeError: .*the first call of"),
        ("another value", "RuntimeError: .*the first call of encode"),
        ("mesh and procs", "UsageError: mesh and procs"),
    ],
)
def test_wrong_calls(name: str, sentence: str, ranks: RankPool) -> None:
    for said in ranks.call("refused", name):
        assert re.search(sentence, said), said


def test_a_mesh_by_its_name(ranks: RankPool) -> None:
    assert max(ranks.call("meshed")) < 1e-9


@pytest.mark.parametrize("name", ["a method", "another shape", "as planned"])
def test_the_first_call_inside_of_a_checkpoint(name: str, ranks: RankPool) -> None:
    """What planning computes is none of the tensors that the checkpoint saves."""
    for distances in ranks.call("checkpointed", name):
        assert max(distances) < 1e-9


def test_methods_under_autocast(ranks: RankPool) -> None:
    for far, alike in ranks.call("under_autocast"):
        assert alike
        assert far < 0.05


def test_parts_by_number(ranks: RankPool) -> None:
    for found in ranks.call("parts"):
        assert found.pop("replaced") < 1e-12
        assert found == {
            "kinds": ["Conv2d", "ReLU", "Conv2d"],
            "length": 3,
            "weight": (5, 3, 3, 3),
            "last": True,
            "in": True,
            "copy": 3,
            "true": True,
            "no parts": False,
        }


def test_a_checkpoint_that_is_saved_in_the_background(ranks: RankPool, tmp_path: Path) -> None:
    for found in ranks.call("saved_in_the_background", str(tmp_path)):
        assert found["moved"] > 0.01
        assert found["state"] == 0
        assert found["out"] < 1e-12


def test_batches_that_differ_name_the_loader(ranks: RankPool) -> None:
    for said in ranks.call("other_batches"):
        assert "was given another batch" in said
        assert said.endswith("; load batches with synth.feed or synth.sampler")


def test_names_that_a_network_has_itself(ranks: RankPool) -> None:
    """It gave what it has, and took what was set, without a word."""
    for rank, found in enumerate(ranks.call("hidden_names")):
        said = (
            "synth: gather, metrics, ranks, received of Named cannot be reached on the network, which has"
            " other attributes of that name; rename them in the model"
        )
        assert found == [
            *[said] * (rank == 0),
            "ranks of the network is its own, so it does not set that of Named; rename it in the model",
            (3, 3),
            True,
            True,
        ]
