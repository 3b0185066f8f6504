"""How a slice that a group shares is cut into shards, so that every word has one owner.

Processes that differ only along a tensor's lacking index need the same slice of it (SPAA'21, "Initial Data
Distribution"). Each of them owns a shard. The paper cuts In and Ker along c. The best grids often have fewer
channels than processes in the group, so shards may be cut along any dimensions: only the balance matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from synth.base.arithmetic import divisors
from synth.layer.axes import Tensor

ShardCut = tuple[tuple[str, int], ...]  # (dimension, parts), the first varies slowest over the group

# tensor -> the dimensions along which its shards are cut, in order of preference
WANTED: dict[Tensor, tuple[str, ...]] = {
    "In": ("c", "g", "b", "h", "w", "d"),
    "Ker": ("c", "k", "g", "r", "s", "t"),
    "Out": ("k", "g", "b", "h", "w", "d"),
}


@lru_cache(maxsize=65536)
def shard_cut(members: int, extents: tuple[tuple[str, int], ...]) -> ShardCut:
    """The cut of a slice among `members` whose smallest shard is largest.

    extents: the dimensions of the smallest slice, in order of preference. One dimension is cut if it divides
    evenly; otherwise up to three dimensions are cut, as few as possible.
    """
    if members == 1:
        return ()
    for dim, extent in extents:
        if extent % members == 0:
            return ((dim, members),)
    # dimensions of extent 1 are interchangeable: keep the preferred one
    flat = [dim for dim, extent in extents if extent == 1][1:]
    extents = tuple((dim, extent) for dim, extent in extents if dim not in flat)
    words = math.prod(extent for _, extent in extents)
    fairest = (words // members, -words // members)  # the least and the most of an even cut
    best: ShardCut = ()
    served = (-1, 0)
    for count in (1, 2, 3):
        for candidate in _candidates(members, extents, count):
            parts = dict(candidate)
            least = math.prod(extent // parts.get(dim, 1) for dim, extent in extents)
            most = math.prod(-(-extent // parts.get(dim, 1)) for dim, extent in extents)
            if (least, -most) > served:
                best, served = candidate, (least, -most)
            if served == fairest:
                return best
        if count == 2 and served[0] > 0:
            break
    return best


def _candidates(members: int, extents: tuple[tuple[str, int], ...], count: int) -> Iterator[ShardCut]:
    """Ways to cut among `members` along exactly `count` of the dimensions."""
    for dims in combinations([dim for dim, _ in extents], min(count, len(extents))):
        for parts in _products(members, len(dims)):
            yield tuple(zip(dims, parts, strict=True))


def _products(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorizations of `number` into `count` factors, each at least 2 when there are several."""
    if count == 1:
        yield (number,)
        return
    for factor in divisors(number)[1:-1]:
        for rest in _products(number // factor, count - 1):
            yield (factor, *rest)


def member_parts(cut: ShardCut, index: int) -> dict[str, tuple[int, int]]:
    """Group member `index` -> {dimension: (parts, its part)}."""
    result: dict[str, tuple[int, int]] = {}
    for dim, parts in reversed(cut):
        index, part = index // parts, index % parts  # numpy has no divmod for arrays of Python integers
        result[dim] = (parts, part)
    return result
