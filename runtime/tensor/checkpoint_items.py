"""How `torch.distributed.checkpoint` writes and reads a partitioned tensor.

A chunk is a box of the user's shape. A box of a refined layout may be several chunks:
some filters of each of two groups, or some rows of a map that is flat in the user's
weight. Every word is written by one rank, and read by all that hold it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import torch

from synth.runtime.grid.boxes import Box, shape, within
from synth.runtime.tensor.partition import Partition


class Chunk(NamedTuple):
    """A box of the user's shape, and the box of the layout that holds its words."""

    box: Box
    inner: Box


def write_items(fqn: str, local: torch.Tensor, partition: Partition) -> list[Any]:
    """What this rank writes: the words of which no rank before it has a copy.

    Replica 0 writes for all replicas.
    """
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import (
        TensorWriteData,
        WriteItem,
        WriteItemType,
    )

    replicas = partition.ranks.replicas
    if replicas is not None and replicas.me > 0:
        return []
    properties = TensorProperties.create_from_tensor(local)
    return [
        WriteItem(
            index=MetadataIndex(fqn, _offsets(chunk.box)),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                chunk=_metadata(chunk.box), properties=properties, size=partition.shape
            ),
        )
        for box in partition.counted
        for chunk in chunks_of(box, partition)
    ]


def chunks(partition: Partition) -> list[Any]:
    """What this rank reads: all words that it holds."""
    return [_metadata(chunk.box) for chunk in chunks_of(partition.box, partition)]


def shard(index: Any, local: torch.Tensor, partition: Partition) -> torch.Tensor:
    """The words of one chunk, as a view into the own part.

    Raises `ValueError` if this rank does not hold the chunk.
    """
    boxes = (partition.box, *partition.counted)
    for box in dict.fromkeys(boxes):
        for chunk in chunks_of(box, partition):
            if index.offset is None or tuple(index.offset) == _offsets(chunk.box):
                part = local[within(chunk.inner, partition.box)]
                return part.view(shape(chunk.box))
    raise ValueError(
        f"{index.fqn}: this rank holds {partition.box} of {tuple(partition.shape)}, but"
        f" is asked for words at {tuple(index.offset)}; load with the tensor that was"
        " planned"
    )


def _offsets(box: Box) -> torch.Size:
    return torch.Size([low for low, _ in box])


def _metadata(box: Box) -> Any:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return ChunkStorageMetadata(_offsets(box), torch.Size(shape(box)))


@lru_cache(2**12)
def chunks_of(box: Box, partition: Partition) -> tuple[Chunk, ...]:
    """The chunks of a box of the layout; none if it is empty."""
    if not partition.refined:
        return (Chunk(box, box),) if math.prod(shape(box)) or not box else ()
    runs = [
        list(
            _runs([box[dim] for dim in dims], [partition.layout.whole[d] for d in dims])
        )
        for dims in _groups(partition.shape, partition.layout.whole)
    ]
    found = []
    for choice in product(*runs):
        user = tuple(run for run, _ in choice)
        inner = tuple(interval for _, intervals in choice for interval in intervals)
        found.append(Chunk(user, inner))
    return tuple(found)


def _groups(user: Sequence[int], inner: Sequence[int]) -> Iterator[list[int]]:
    """For each dimension of the user's shape, the dimensions that refine it.

    Inner dimensions of extent 1 at the end belong to the last one.
    """
    place = 0
    for position, extent in enumerate(user):
        dims, size = list[int](), 1
        last = position == len(user) - 1
        while place < len(inner) and (size < extent or not dims or last):
            dims.append(place)
            size *= inner[place]
            place += 1
        yield dims


def _runs(
    box: Sequence[tuple[int, int]], whole: Sequence[int]
) -> Iterator[tuple[tuple[int, int], Box]]:
    """The intervals of a merged dimension that a box covers, each with its own box."""
    if any(high <= low for low, high in box):
        return
    tail = len(box)  # behind `first`, all dimensions are whole
    while tail > 1 and tuple(box[tail - 1]) == (0, whole[tail - 1]):
        tail -= 1
    first = tail - 1
    step = math.prod(whole[first + 1 :])
    outer = [range(low, high) for low, high in box[:first]]
    for place in product(*outer):
        start = 0
        for index, extent in zip(place, whole[:first], strict=True):
            start = start * extent + index
        low, high = box[first]
        start = start * whole[first]
        run = ((start + low) * step, (start + high) * step)
        inner = (*((i, i + 1) for i in place), (low, high))
        yield run, (*inner, *((0, extent) for extent in whole[first + 1 :]))
