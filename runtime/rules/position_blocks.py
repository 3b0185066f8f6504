"""Joined positions, block by block: no words move where ranks hold blocks of a map.

A rank with some rows and columns of a map has no interval of its positions in row-major
order. Calls such as linear layers and attention treat all positions alike. Between the
reshape that joins positions and the one that divides them again, positions may stand in
any order: here those of one rank's block after those of another's.

    2 x 2 blocks of a map of 4 x 4:    0  1 |  4  5
                                       2  3 |  6  7
                                       8  9 | 12 13
                                      10 11 | 14 15
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, Interval, cut, volume
from synth.runtime.rules.movement import with_dims
from synth.runtime.rules.rule import Rule, reshaped

Dims = tuple[int, int]  # of a tensor, as an interval


class Blocks(NamedTuple):
    """The order of joined positions.

    places: by rank, its interval of the joined positions; an empty one for no block.
    rows: interval -> the block, an interval for each dimension that was joined.
    among: by rank, which of the parts of the other dimensions it has; parts: how many.
    """

    places: tuple[Interval, ...]
    rows: dict[Interval, Box]
    among: tuple[int, ...]
    parts: int


def blocks_of(source: Layout, dims: Dims) -> Blocks | None:
    """The order of blocks if the joined dimensions are cut into blocks, else None.

    Ranks with equal intervals of the other dimensions must have all positions, each
    once, and in the same blocks as the ranks of other samples.
    """
    low, high = dims
    parts: dict[Box, list[int]] = {}
    for rank, box in enumerate(source.boxes):
        if volume(box):
            parts.setdefault((*box[:low], *box[high:]), []).append(rank)
    lists = [[source.boxes[r][low:high] for r in ranks] for ranks in parts.values()]
    frame = tuple((0, extent) for extent in source.whole[low:high])
    if not lists or any(each != lists[0] for each in lists):
        return None
    blocks = lists[0]
    if len(set(blocks)) < len(blocks) or sum(map(volume, blocks)) != volume(frame):
        return None
    places, among = [(0, 0)] * len(source.boxes), [0] * len(source.boxes)
    rows, begin = dict[Interval, Box](), 0
    for place, block in enumerate(blocks):
        interval = begin, begin + volume(block)
        begin, rows[interval] = interval[1], block
        for part, ranks in enumerate(parts.values()):
            places[ranks[place]], among[ranks[place]] = interval, part
    return Blocks(tuple(places), rows, tuple(among), len(parts))


def joined_blocks(
    source: Layout, dims: Dims, blocks: Blocks, shape: Sequence[int]
) -> Rule:
    """Dimensions `dims` of a map as one, in the order of blocks.

    shape: of the result, which may have other dimensions of extent 1.
    """
    low, high = dims
    whole = *source.whole[:low], sum(map(volume, blocks.rows.values()))
    pairs = zip(source.boxes, blocks.places, strict=True)
    out = source.with_boxes(
        (*whole, *source.whole[high:]),
        ((*box[:low], place, *box[high:]) for box, place in pairs),
    )
    return reshaped(source, source, _with_shape(out, shape))


def divided_blocks(
    source: Layout, dim: int, blocks: Blocks, shape: Sequence[int]
) -> Rule:
    """Dimension `dim`, with positions in the order of blocks, as those of a map.

    shape: as above.
    """
    held = in_blocks(source, dim, blocks)
    columns = zip(*blocks.rows.values(), strict=True)
    extents = [max(high for _, high in rows) for rows in columns]
    empty = ((0, 0),) * len(extents)
    out = source.with_boxes(
        (*source.whole[:dim], *extents, *source.whole[dim + 1 :]),
        (
            (*box[:dim], *blocks.rows.get(box[dim], empty), *box[dim + 1 :])
            for box in held.boxes
        ),
    )
    return reshaped(source, held, _with_shape(out, shape))


def _with_shape(layout: Layout, shape: Sequence[int]) -> Layout:
    """A layout with dimensions of extent 1 left out or added."""
    long = iter(dim for dim, extent in enumerate(layout.whole) if extent != 1)
    return with_dims(layout, [None if n == 1 else next(long) for n in shape])


def in_blocks(source: Layout, dim: int, blocks: Blocks) -> Layout:
    """The layout itself if ranks have positions of one block, else one with these."""
    if all(box[dim] in blocks.rows for box in source.boxes if volume(box)):
        return source
    frame = [(0, extent) for extent in source.whole]
    other = 0 if dim else 1  # cut for the parts of the other dimensions
    boxes = []
    for place, part in zip(blocks.places, blocks.among, strict=True):
        box = [*frame]
        box[dim] = place
        if len(box) > 1:
            box[other] = cut(frame[other], blocks.parts, part)
        boxes.append(tuple(box))
    return source.with_boxes(source.whole, boxes)
