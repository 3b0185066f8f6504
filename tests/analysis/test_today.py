"""What methods of today cost: the words of DDP and FSDP2 beside counted ones and beside plans."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import synth
from synth.analysis.today import today
from synth.layer.layer import Layer
from synth.planning.comparison import compare
from synth.planning.plan import Plan

CONV = Path(__file__).parents[2] / "examples" / "conv.yaml"


def rows(plan: Plan) -> dict[str, tuple[int | None, int | None]]:
    return {each.name: (each.words, each.memory_bytes) for each in today(plan)}


@pytest.mark.parametrize("procs", [2, 8, 32])
def test_fsdp_forward_is_the_plan_of_data_parallelism(procs: int) -> None:
    """Where weights have one owner each, data parallelism gathers them: the words of FSDP2, counted."""
    plan = synth.plan(CONV, procs)
    data = next(each for each in compare(plan) if each.name == "data")
    assert rows(plan)["FSDP2"][0] == data.words
    step = synth.plan(CONV, procs, pass_="training")
    data = next(each for each in compare(step) if each.name == "data")
    assert rows(step)["DDP"][0] == data.words  # gathered once and summed once: 2 (W - W/p)
    assert rows(step)["FSDP2"][0] == data.words * 3 // 2


def test_a_ring_all_reduce_word_by_word() -> None:
    """DDP: each rank receives p - 1 pieces to add and p - 1 sums."""
    layer = Layer.conv2d((8, 3, 6, 6), 8, 3, padding=1, name="small")
    plan = synth.plan(layer, 4, pass_="training")
    pieces = [len(range(rank, 216, 4)) for rank in range(4)]
    received = [
        sum(pieces[(rank - step - 1) % 4] for step in range(3))
        + sum(pieces[(rank - step) % 4] for step in range(3))
        for rank in range(4)
    ]
    assert rows(plan)["DDP"][0] == max(received) == 2 * (216 - 54)
    maps = 2 * 3 * 36 * 2 + 2 * 8 * 36  # In and dIn, Out, of 2 samples
    assert rows(plan)["DDP"][1] == (2 * 216 + maps) * 4
    assert rows(plan)["FSDP2"][1] == (2 * 54 + 2 * 216 + maps) * 4


def test_no_rank_without_a_sample() -> None:
    found = {each.name: each for each in today(synth.plan(CONV, 64))}
    assert found["DDP"].how == "b=32, 32 ranks idle, whole weights"
    assert found["DDP"].words == 0
    assert found["tensor"].words == min(
        each.words or math.inf for each in compare(synth.plan(CONV, 64)) if each.name in ("filter", "channel")
    )


def test_a_contraction_has_no_weights() -> None:
    layer = Layer.einsum("hqd,hkd->hqk", {"h": 3, "q": 10, "k": 12, "d": 6}, name="scores")
    assert rows(synth.plan(layer, 3)).keys() == {"this plan", "tensor", "spatial"}
