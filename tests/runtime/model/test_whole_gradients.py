"""Gradients of which every copy is whole are averaged over replicas so that copies remain equal."""

from __future__ import annotations

import pytest
import torch

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, within
from synth.runtime.grid.ranks import Ranks
from synth.runtime.model.replication import whole_gradient
from synth.runtime.tensor.partition import Partition

CHANNELS = 10
BOXES: dict[str, list[Box]] = {
    "apart": [((0, 4),), ((4, 10),), ((0, 0),)],
    "equal": [((0, 6),), ((6, 10),), ((0, 6),)],
    "everywhere": [((0, 10),), ((0, 10),), ((0, 10),)],
    "overlapping": [((0, 6),), ((3, 8),), ((5, 10),)],
    "overlapping, one idle": [((0, 6),), ((0, 0),), ((5, 10),)],
}


@pytest.mark.parametrize("case", BOXES)
def test_each_word_counts_once(case: str) -> None:
    boxes = BOXES[case]
    members = tuple(range(len(boxes)))
    places = [Partition(Layout((CHANNELS,), tuple(boxes), Ranks(members, me))) for me in members]
    gradient = torch.arange(1.0, CHANNELS + 1)  # in each of two replicas
    found = {me: whole_gradient(places[me]) for me in members if places[me].local_words}
    for me, (holders, spread) in found.items():
        assert me in holders
        assert all(found[other][0] == holders for other in holders)
        own = gradient[within(boxes[me], ((0, CHANNELS),))]
        if spread is None:
            assert holders == (me,)
            continue
        given = [
            found[other][1].packed(gradient[within(boxes[other], ((0, CHANNELS),))])  # type: ignore[union-attr]
            for other in holders
        ]
        assert len({each.shape for each in given}) == 1
        assert torch.equal(spread.unpacked(sum(given) * 2), 2 * own)  # type: ignore[arg-type]


def test_a_scalar_counts_once() -> None:
    places = [Partition(Layout((), ((), ()), Ranks((0, 1), me))) for me in (0, 1)]
    (holders, one), (_, other) = map(whole_gradient, places)
    assert holders == (0, 1)
    assert one is not None
    assert other is not None
    value = torch.tensor(3.0)
    assert one.unpacked(one.packed(value) + other.packed(value)) == 3
