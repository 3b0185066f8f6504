"""The layers of real networks: no plan is beaten by a named strategy, or below its bound, or miscounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.layer.layer import load_layer
from synth.planning.comparison import compare
from synth.planning.derive import plan
from synth.simulation.interpreter import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NETWORKS = ("cosmoflow", "resnet50", "vgg16", "wrn50_4")
FILES = sorted(path for network in NETWORKS for path in (EXAMPLES / network).glob("*.yaml"))
PROCS = (4, 16, 61, 64, 256, 1000, 1024)
SIMULATED = 64  # processes up to which every rank's words are counted one by one

# one early, one middle and one late layer of every kind; the whole matrix runs with --slow
ALWAYS = (
    "cosmoflow/conv1",
    "cosmoflow/conv5",
    "resnet50/conv1_7x7",
    "resnet50/conv4_x_1x1_project",
    "resnet50/conv4_x_3x3",
    "vgg16/conv1_2",
    "wrn50_4/conv5_x_3x3_first",
)


def check(path: Path, procs: int) -> None:
    made = plan(load_layer(path), procs)
    words = made.words["total"]
    assert made.used_procs <= procs
    assert made.bound.words <= words
    for each in compare(made):
        if each.feasible:
            assert each.words is not None
            assert words <= each.words, each.name
    if procs <= SIMULATED:
        counted = simulate(made.schedule)
        for rank in made.distribution.ranks:
            at = made.received.at(made.distribution.at(rank))
            assert at == {name: ranks[rank] for name, ranks in counted.received.items()}
        assert max(counted.peak) <= made.used_words


@pytest.mark.parametrize("procs", PROCS)
@pytest.mark.parametrize("name", ALWAYS)
@pytest.mark.one_in(4)
def test_representative_layers(name: str, procs: int) -> None:
    check(EXAMPLES / f"{name}.yaml", procs)


@pytest.mark.slow
@pytest.mark.parametrize("procs", PROCS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_layer(path: Path, procs: int) -> None:
    check(path, procs)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_networks_are_there(network: str) -> None:
    assert {f"{path.parent.name}/{path.stem}" for path in FILES} >= set(ALWAYS)
    assert sum(path.parent.name == network for path in FILES) >= 6


def test_a_thousand_ranks_counted_one_by_one() -> None:
    made = plan(load_layer(EXAMPLES / "resnet50/conv5_x_3x3.yaml"), 1024)
    assert simulate(made.schedule).most() == made.words
