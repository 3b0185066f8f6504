"""Chunks of partitioned tensors, without ranks: each word is written once, and read by all that hold it."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, shape, within
from synth.runtime.grid.ranks import Ranks
from synth.runtime.tensor import checkpoint_items
from synth.runtime.tensor.partition import Partition

Partitions = tuple[tuple[int, ...], tuple[int, ...], list[Box]]  # user's shape, layout's, boxes


def of_rank(made: Partitions, rank: int) -> Partition:
    """The partition as a rank has it."""
    user, whole, boxes = made
    return Partition(Layout(whole, tuple(boxes), Ranks(tuple(range(len(boxes))), rank)), user)


@st.composite
def partitions(draw: st.DrawFn) -> Partitions:
    """Shapes, perhaps refined, of which a grid of cells is held: some cells by several ranks, some grown."""
    extents = st.integers(1, 5)
    groups = [tuple(draw(st.lists(extents, min_size=1, max_size=3))) for _ in range(draw(st.integers(1, 3)))]
    user = tuple(math.prod(group) for group in groups)
    whole = tuple(extent for group in groups for extent in group)
    cells: list[list[tuple[int, int]]] = [[]]
    for extent in whole:
        ends = sorted({0, extent, draw(st.integers(0, extent))})
        cells = [[*cell, interval] for cell in cells for interval in pairwise(ends)]
    cells = cells if len(cells) <= 8 else [[(0, extent) for extent in whole]]
    grown = []
    for cell in cells:
        halo = draw(st.integers(0, 1))
        pairs = zip(cell, whole, strict=True)
        grown.append(tuple((max(0, low - halo), min(n, high + halo)) for (low, high), n in pairs))
    copies = draw(st.lists(st.sampled_from(grown), max_size=2))
    idle = [((0, 0),) * len(whole)] * draw(st.integers(0, 1))
    return user, whole, draw(st.permutations(grown + copies + idle))


def region(offsets: Any, sizes: Any) -> tuple[slice, ...]:
    """The words of a chunk in the user's shape."""
    return tuple(slice(low, low + size) for low, size in zip(offsets, sizes, strict=True))


@settings(max_examples=60, deadline=None)
@given(partitions())
def test_counted_boxes_hold_every_word_once(made: Partitions) -> None:
    _, whole, boxes = made
    times = np.zeros(whole, int)
    for rank, box in enumerate(boxes):
        held = np.zeros(whole, bool)
        held[region([low for low, _ in box], shape(box))] = True
        for part in of_rank(made, rank).counted:
            times[region([low for low, _ in part], shape(part))] += 1
            assert held[region([low for low, _ in part], shape(part))].all()
    assert (times == 1).all()


@settings(max_examples=60, deadline=None)
@given(partitions())
def test_every_word_is_written_once_and_read_by_its_holders(made: Partitions) -> None:
    user, whole, boxes = made
    values = torch.arange(math.prod(user)).reshape(user)
    times = np.zeros(user, int)
    for rank, box in enumerate(boxes):
        place = of_rank(made, rank)
        local = values.reshape(whole)[within(box, place.frame)].clone()
        for item in checkpoint_items.write_items("w", local, place):
            chunk = item.tensor_data.chunk
            cut = region(chunk.offsets, chunk.sizes)
            times[cut] += 1
            part = checkpoint_items.shard(item.index, local, place)
            assert torch.equal(part[region([0] * len(user), chunk.sizes)], values[cut])
        read = np.zeros(user, int)
        for chunk in checkpoint_items.chunks(place):
            read[region(chunk.offsets, chunk.sizes)] += 1
        held = np.zeros(whole, int)
        held[region([low for low, _ in box], shape(box))] = 1
        assert (read == held.reshape(user)).all()
    assert (times == 1).all()


@settings(max_examples=60, deadline=None)
@given(partitions())
def test_what_is_read_is_written_through_views(made: Partitions) -> None:
    user, whole, boxes = made
    values = torch.arange(math.prod(user)).reshape(user)
    for rank, box in enumerate(boxes):
        place = of_rank(made, rank)
        local = torch.full(shape(box), -1)
        for chunk in checkpoint_items.chunks(place):
            index = SimpleNamespace(fqn="w", offset=chunk.offsets)
            checkpoint_items.shard(index, local, place).copy_(values[region(chunk.offsets, chunk.sizes)])
        assert torch.equal(local, values.reshape(whole)[within(box, place.frame)])
