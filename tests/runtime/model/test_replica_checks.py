"""Copies that are compared along chains of ranks: every difference is found, and few ranks are asked."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from synth.runtime.grid.boxes import Box, overlap, volume
from synth.runtime.model.checks.replicas import neighbours


def boxes_of(draw: random.Random, size: int) -> list[Box]:
    """Boxes of some ranks: cut into parts, wholes, with halos, and with no words."""
    found = []
    for _ in range(size):
        low = [draw.choice((0, 0, 2, 4, 6)) for _ in range(2)]
        found.append(tuple((each, min(8, each + draw.choice((0, 2, 3, 8, 8)))) for each in low))
    return found


def links(boxes: list[Box]) -> set[tuple[int, int, Box]]:
    """(earlier rank, later rank, region) that are compared, as the later one says."""
    return {
        (other, at, region)
        for at in range(len(boxes))
        for region, other in neighbours(boxes, at)
        if other < at
    }


@pytest.mark.parametrize("seed", range(200))
def test_both_ranks_of_a_pair_list_it_alike(seed: int) -> None:
    draw = random.Random(seed)
    boxes = boxes_of(draw, draw.randint(1, 9))
    said = {
        (at, other, region)
        for at in range(len(boxes))
        for region, other in neighbours(boxes, at)
        if other > at
    }
    assert said == links(boxes)
    assert len({pair[:2] for pair in said}) == len(said)


@pytest.mark.parametrize("seed", range(200))
def test_copies_that_are_equal_along_the_chains_are_equal(seed: int) -> None:
    """Of any word, its holders are connected by regions that contain it."""
    draw = random.Random(seed)
    boxes = boxes_of(draw, draw.randint(2, 9))
    compared = links(boxes)
    for word in ((row, column) for row in range(8) for column in range(8)):
        holders = [at for at, box in enumerate(boxes) if _in(word, box)]
        joined = {at: {at} for at in holders}
        for one, other, region in compared:
            if _in(word, region):
                both = joined[one] | joined[other]
                joined |= dict.fromkeys(both, both)
        assert all(joined[one] is joined[other] or one == other for one, other in combinations(holders, 2))


@pytest.mark.parametrize("size", [16, 256, 4096])
@pytest.mark.parametrize("slices", [1, 4])
def test_a_rank_exchanges_two_digests_of_a_slice_that_many_hold(size: int, slices: int) -> None:
    boxes = [((8 * (at % slices), 8 * (at % slices) + 8),) for at in range(size)]
    for at in (0, size // 3, size - 1):
        found = list(neighbours(boxes, at))
        assert found == [(boxes[at], at + step) for step in (-slices, slices) if 0 <= at + step < size]


def test_halos_are_compared_between_neighbours() -> None:
    boxes = [((max(0, 8 * at - 1), 8 * at + 9),) for at in range(100)]
    found = dict(neighbours(boxes, 50))
    assert set(found.values()) == {49, 51}
    assert all(volume(region) == 2 and overlap(region, boxes[50]) == region for region in found)


def _in(word: tuple[int, ...], box: Box) -> bool:
    return all(low <= each < high for each, (low, high) in zip(word, box, strict=True))
