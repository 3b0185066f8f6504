"""A lower bound of the received words of a grid, from a few of its most loaded processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from synth.layer.axes import SPATIAL, Axis, PerAxis, Tensor
from synth.layer.intervals import overlap, volume
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, reads
from synth.schedule.distribution import Distribution


def heavy_words(distribution: Distribution, passes: Passes, again: Collection[Tensor] = ()) -> int:
    """Lower bound of the words that the most receiving process of a grid receives in some passes.

    The bound holds for any tiling, and if every reusable tensor is reused but those of `again`, which two
    passes gather. It is the maximum over the processes of `_heavy_coordinates`.
    """
    gathered = [
        tensor
        for tensor in {t: None for pass_ in passes for t in reads(pass_)}
        if _moves(distribution, tensor)
    ]
    reduced = [WRITES[pass_] for pass_ in passes if distribution.group_size(WRITES[pass_]) > 1]
    most = 0
    for at in dict.fromkeys(_heavy_coordinates(distribution)):
        words = 0
        for tensor in gathered:
            needed = distribution.needed(tensor, at)
            lacked = volume(needed) - volume(overlap(needed, distribution.owned(tensor, at)))
            words += lacked * (2 if tensor in again else 1)
        for tensor in reduced:
            words += (distribution.group_size(tensor) - 1) * volume(distribution.carried(tensor, at))
        most = max(most, words)
    return most


def _moves(distribution: Distribution, tensor: Tensor) -> bool:
    """Whether a process may need words of a tensor that it does not own: of its group, or of neighbours."""
    framed = distribution.nest.framed(tensor)
    return distribution.group_size(tensor) > 1 or distribution.grid.of(framed) > 1


def _heavy_coordinates(distribution: Distribution) -> Iterator[PerAxis]:
    """Grid coordinates with the largest block along every axis.

    The first process owns the largest shards, the last one the smallest.
    """
    nest, grid = distribution.nest, distribution.grid
    last = PerAxis(*((extent - 1) % parts for extent, parts in zip(nest.extents, grid, strict=True)))
    rows = {axis: _unpadded_block(nest, axis, getattr(grid, axis)) for axis in SPATIAL}
    yield PerAxis(**rows)
    yield PerAxis(**{axis: int(getattr(grid, axis) > 2) for axis in SPATIAL})  # less padding, maybe shorter
    yield last._replace(**rows)
    yield last


def _unpadded_block(nest: Nest, axis: Axis, parts: int) -> int:
    """The index of a longest block with the least padding: the second, if it is as long as the first."""
    return 1 if parts > 2 and (getattr(nest.extents, axis) - 1) % parts > 0 else 0
