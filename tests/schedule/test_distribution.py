"""Who works on what and owns what, checked word by word."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_nests import same_window
from hypothesis import given
from hypothesis_problems import distributions

from synth.layer.axes import AXES, LACKS, TENSORS, PerAxis, Tensor
from synth.layer.intervals import Box, contains, overlap, volume, within
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule.distribution import Distribution


def covered(boxes: list[Box], shape: tuple[int, ...]) -> np.ndarray:
    """How often each word lies in one of the boxes."""
    counts = np.zeros(shape, int)
    for box in boxes:
        counts[within(box, tuple((0, n) for n in shape))] += 1
    return counts


@given(distributions())
def test_ranks_are_row_major(d: Distribution) -> None:
    places = [d.at(rank) for rank in d.ranks]
    assert [tuple(place) for place in places] == list(np.ndindex(*d.grid))
    assert [d.rank(place) for place in places] == list(d.ranks)


@given(distributions())
def test_work_is_cut_as_torch_cuts_and_every_iteration_has_one_process(d: Distribution) -> None:
    for axis, extent, parts in zip(AXES, d.nest.extents, d.grid, strict=True):
        chunks = torch.tensor_split(torch.arange(extent), parts)
        for index, chunk in enumerate(chunks):
            at = PerAxis(0, 0, 0, 0, 0, 0, 0).with_(axis, index)
            assert list(range(*d.work(at)[axis])) == chunk.tolist()
    blocks = [tuple(d.work(d.at(rank)).values()) for rank in d.ranks]
    assert (covered(blocks, tuple(d.nest.extents)) == 1).all()
    assert d.most_work == PerAxis(*(max(box[i][1] - box[i][0] for box in blocks) for i in range(len(AXES))))


@given(distributions())
@pytest.mark.parametrize("tensor", TENSORS)
def test_owned_boxes_partition_the_tensor(tensor: Tensor, d: Distribution) -> None:
    boxes = [d.owned(tensor, d.at(rank)) for rank in d.ranks]
    assert (covered(boxes, d.nest.shapes[tensor]) == 1).all()


@given(distributions())
@pytest.mark.parametrize("tensor", TENSORS)
def test_carried_boxes_of_a_group_partition_what_it_needs(tensor: Tensor, d: Distribution) -> None:
    for rank in d.ranks:
        at = d.at(rank)
        if d.member(tensor, at):
            continue
        group = d.group(tensor, at)
        assert len(group) == d.group_size(tensor)
        assert {d.needed(tensor, place) for place in group} == {d.needed(tensor, at)}
        counts = covered([d.carried(tensor, place) for place in group], d.nest.shapes[tensor])
        assert np.array_equal(counts, covered([d.needed(tensor, at)], d.nest.shapes[tensor]))


@given(distributions())
@pytest.mark.parametrize("tensor", TENSORS)
def test_groups_differ_along_the_lacking_index_only(tensor: Tensor, d: Distribution) -> None:
    for rank in d.ranks:
        at = d.at(rank)
        group = d.group(tensor, at)
        assert group[d.member(tensor, at)] == at
        for place in group:
            assert all(getattr(place, a) == getattr(at, a) for a in AXES if a not in LACKS[tensor])


@given(distributions())
def test_the_heaviest_process_on_real_input(d: Distribution) -> None:
    loads = []
    for rank in d.ranks:
        block = d.work(d.at(rank))
        taps = 1
        for axis, window in d.nest.windows.items():
            taps *= window.taps(*block[axis])
        loads.append(taps * np.prod([block[a][1] - block[a][0] for a in ("b", "g", "c", "k")]))
    assert max(loads) == d.most_real_work


def test_rows_are_owned_once_and_halos_come_from_neighbours() -> None:
    """Eight rows, kernel 3, four processes along h: each owns two rows and needs one more on each side."""
    d = Distribution(Nest(PerAxis(h=8), Window(1), same_window(8), Window(1)), PerAxis(h=4))
    rows = [(d.owned("In", d.at(r))[4], d.needed("In", d.at(r))[4]) for r in d.ranks]
    assert rows == [((0, 2), (0, 3)), ((2, 4), (1, 5)), ((4, 6), (3, 7)), ((6, 8), (5, 8))]


def test_a_halo_may_be_wider_than_a_neighbour() -> None:
    d = Distribution(Nest(PerAxis(h=6), Window(1), same_window(6, 5), Window(1)), PerAxis(h=6))
    owners = [r for r in d.ranks if volume(overlap(d.needed("In", d.at(3)), d.owned("In", d.at(r))))]
    assert owners == [1, 2, 3, 4, 5]


def test_a_slice_of_three_channels_is_cut_elsewhere() -> None:
    """First layer of a network: 3 channels, 4 processes along k; In is cut along the samples instead."""
    d = Distribution(Nest(PerAxis(b=8, c=3, k=64), *[Window(1)] * 3), PerAxis(k=4))
    assert d.shard_cuts["In"] == (("b", 4),)
    assert all(contains(d.needed("In", d.at(r)), d.owned("In", d.at(r))) for r in d.ranks)
