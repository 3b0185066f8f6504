"""Words of a plan within a limit of memory contain what tiles receive again."""

from __future__ import annotations

import pytest
from torch import nn

import synth

SHAPE, PROCS = (4, 4, 16, 16, 16), 8


def model() -> nn.Module:
    """Layers whose tiles, within a tight limit, receive slices more than once."""
    return nn.Sequential(
        nn.Conv3d(4, 32, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(32, 32, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(32, 64, 3, padding=1, bias=False),
    )


@pytest.mark.parametrize("memory", [None, 816_000, 635_000])
@pytest.mark.one_in(2)
def test_words_of_a_plan_are_those_that_its_programs_receive(memory: int | None) -> None:
    plan = synth.plan_model(model(), SHAPE, PROCS, memory=memory, mode="inference")
    assert plan.cost == plan.words.most
    assert memory is None or plan.held_bytes <= memory
    if memory == 635_000:
        assert any(each.first.panels > 1 and each.words for each in plan.tilings)


@pytest.mark.slow
def test_costs_of_layers_are_the_words_of_their_tilings() -> None:
    two, shape = nn.Sequential(*list(model())[3:]), (8, 32, 8, 8, 8)
    ample = synth.plan_model(two, shape, PROCS)
    tiled = 0
    for share in (1.0, 0.7, 0.6, 0.5):  # how tight these are depends on what kernels copy
        if tiled:
            break
        plan = synth.plan_model(two, shape, PROCS, memory=int(share * ample.held_bytes))
        layers = list(zip(plan.layer_costs, plan.tilings, plan.layer_classes, strict=True))
        weighted = [(cost, tiling.words) for cost, tiling, kind in layers if kind.weighted]
        assert [cost for cost, _ in weighted] == [words for _, words in weighted]
        rows = [sum(row["words"].values()) for row in plan.to_json()["layers"]]
        assert all(row >= cost for row, cost in zip(rows, plan.layer_costs, strict=True))
        assert plan.words.most <= plan.cost
        tiled += any(each.first.panels > 1 for each in plan.tilings)
    assert tiled
