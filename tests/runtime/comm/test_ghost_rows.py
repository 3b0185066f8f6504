"""Buffers with ghost rows: a shard is found in its buffer, and only there."""

from __future__ import annotations

import torch

from synth.runtime.comm.ghost_rows import Rooms, joint
from synth.runtime.comm.halo_exchange import Neighbours, fetch_rows, return_rows
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.grid.process_grid import At

OWNED: Box = ((0, 2), (4, 8))
CARRIED: Box = ((0, 2), (4, 8))  # of a rank without neighbours: the rows are in its buffer
WIDE: Box = ((0, 2), (3, 10))


def alone() -> Neighbours:
    def record(words: int) -> None:
        assert words == 0

    return Neighbours({}, [{}], {}, record)


def box(which: Box):  # type: ignore[no-untyped-def]
    def at(_: At) -> Box:
        return which

    return at


def test_a_kept_shard_is_part_of_its_buffer() -> None:
    rooms, values = Rooms(), torch.arange(8.0).view(2, 4)
    shard = rooms.keep(values, OWNED, WIDE, [1, 2, 0, 0])
    room = rooms.of(shard.detach(), OWNED)
    assert room is not None
    assert (shard == values).all()
    assert room.whole.shape == (2, 1 + 7 + 2)
    assert room.widened(WIDE).data_ptr() == room.whole.data_ptr()
    assert (room.whole[:, 0] == 0).all()
    assert (room.whole[:, -2:] == 0).all()
    assert (room.widened(OWNED) == values).all()


def test_no_other_tensor_is_taken_for_it() -> None:
    """A caller's view with the same strides is not: its border is the caller's."""
    rooms, values = Rooms(), torch.arange(8.0).view(2, 4)
    shard = rooms.keep(values, OWNED, WIDE)
    wide = torch.zeros(2, 7)
    assert rooms.of(values, OWNED) is None
    assert rooms.of(wide[:, 1:5], OWNED) is None
    assert rooms.of(shard[:, 1:], ((0, 2), (5, 8))) is not None
    assert rooms.of(shard[:, 1:], ((0, 2), (4, 7))) is None
    assert rooms.of(shard.new_empty(2, 0), ((0, 2), (4, 4))) is None
    assert Rooms().of(shard, OWNED) is None


def test_rows_are_fetched_into_the_buffer() -> None:
    rooms, values = Rooms(), torch.arange(8.0).view(2, 4)
    shard = rooms.keep(values, OWNED, CARRIED, [1, 1, 0, 0])
    ends = box(OWNED), box(CARRIED), alone()
    found = fetch_rows(shard, *ends, rooms=rooms)
    assert found.shape == (2, 6)
    assert found[:, 1:-1].data_ptr() == shard.data_ptr()
    assert (found == fetch_rows(values, *ends, zeros=[1, 1, 0, 0], rooms=rooms)).all()
    assert fetch_rows(values, *ends).data_ptr() not in (values.data_ptr(), shard.data_ptr())


def test_a_buffer_holds_owned_rows_that_nothing_reads() -> None:
    rooms, values = Rooms(), torch.arange(8.0).view(2, 4)
    read: Box = ((0, 2), (5, 7))
    shard = rooms.keep(values, OWNED, read, [1, 1, 0, 0])  # no zeros beside rows that are not carried
    found = fetch_rows(shard, box(OWNED), box(read), alone(), rooms=rooms)
    assert (found == values[:, 1:3]).all()
    assert found.data_ptr() == shard[:, 1:].data_ptr()


def test_returned_rows_may_stay_in_the_sums() -> None:
    sums = torch.arange(14.0).view(2, 7)
    ends = box(WIDE), box(OWNED), alone()
    kept, copied = return_rows(sums, *ends, in_place=True), return_rows(sums, *ends)
    assert kept.data_ptr() == sums[:, 1:].data_ptr()
    assert (kept == copied).all()
    assert copied.is_contiguous()
    assert kept.shape == shape(OWNED)


def test_the_smallest_box_around_two() -> None:
    assert joint(((0, 3), (2, 2)), ((1, 5), (0, 4))) == ((0, 5), (0, 4))
    assert joint(((0, 3), (2, 4)), ((7, 7), (9, 11))) == ((0, 3), (2, 11))
